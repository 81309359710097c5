// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package disk is the local engine's interface to a file system, so that tests can substitute another one.
//
// [OS] is the system's. [Mem] is in memory and records which bytes have been synced: [Mem.Crash] returns a file system as a power loss
// could leave it, for a given seed, and [Mem.Hook] lets any operation fail.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package disk

import "io"

// FS is a file system. Names are paths; creating and renaming files is durable only when SyncDir has returned.
type FS interface {
	MkdirAll(dir string) error
	// List returns the names in a directory, sorted, without the directory.
	List(dir string) ([]string, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Create creates a file, or truncates an existing one.
	Create(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(dir string) error
	// Lock takes a lock that ends with the process at the latest. The error [store.ErrLocked] means that another process holds it.
	Lock(name string) (io.Closer, error)
}

// File is an open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() (int64, error)
	Truncate(size int64) error
	// Allocate reserves space and makes the file at least that long; new bytes read as zeros.
	Allocate(size int64) error
	// Sync makes the content and length durable.
	Sync() error
	// Datasync makes the content durable, and the length if it is needed to read the content.
	Datasync() error
}
