// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
)

// Classes of errors. Test with [errors.Is]; the API server maps each to an API status.
var (
	// ErrCompacted is returned when a read or watch names a revision whose history is compacted.
	ErrCompacted = errors.New("revision is compacted")
	// ErrFuture is returned when a read or watch names a revision that the store has not reached.
	ErrFuture = errors.New("revision is in the future")
	// ErrClosed is returned by all operations of a closed engine.
	ErrClosed = errors.New("store is closed")
	// ErrLocked is returned when another process has the store open.
	ErrLocked = errors.New("store is in use by another process")
	// ErrCorrupt is returned when stored bytes differ from the written ones, other than at the torn end of the newest log.
	ErrCorrupt = errors.New("store is corrupt")
	// ErrNoSpace is returned by commits when the store's disk or its own bound is full; reads go on.
	ErrNoSpace = errors.New("store has no space left")
	// ErrTooLarge is returned when a value or transaction exceeds the engine's bound.
	ErrTooLarge = errors.New("value is too large")
	// ErrInvalid is returned by commits whose ops no state could satisfy: an empty key, a key twice, a TTL without a value.
	ErrInvalid = errors.New("operation is invalid")
	// ErrFormat is returned when a store was written in a format that this version does not know.
	ErrFormat = errors.New("store format is unknown")
	// ErrUnknown is returned by commits that were sent to a process that did not answer: they may have been carried out, or may yet be.
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrReadOnly is returned by commits after a write to the disk has failed: the content of the disk is then unknown
	// until the store is opened again. Reads continue.
	ErrReadOnly = errors.New("store is read-only after a failed write")
)

// ConflictError is returned by Commit when an [Op.Expect] does not hold.
type ConflictError struct {
	Key     string
	Expect  int64
	Current *Record // nil: the key does not exist
}

// UnreadableError is returned for a record whose value is there, but cannot be used: it does not decrypt, or it is no object of its kind.
type UnreadableError struct {
	Key      string
	Revision int64 // of the record
	Sealed   bool  // it does not decrypt
	Err      error // why
}

// Error names the key.
func (e *UnreadableError) Error() string {
	if e.Sealed {
		return fmt.Sprintf("unable to transform key %q: %v", e.Key, e.Err) // upstream's words
	}
	return fmt.Sprintf("decode %s: %v", e.Key, e.Err)
}

// Unwrap returns why the value cannot be used.
func (e *UnreadableError) Unwrap() error { return e.Err }

// Error names the key and both revisions.
func (e *ConflictError) Error() string {
	if e.Current == nil {
		return fmt.Sprintf("key %q: expected revision %d, does not exist", e.Key, e.Expect)
	}
	return fmt.Sprintf("key %q: expected revision %d, is at %d", e.Key, e.Expect, e.Current.Revision)
}
