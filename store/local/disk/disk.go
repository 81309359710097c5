// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package disk is the interface of the local engine to a file system, so that tests can substitute another one.
//
// [OS] is the machine's. [Mem] is one in memory that knows which bytes have been synced: [Mem.Crash] makes the file
// system that could be found after the machine lost power, for a given seed, and [Mem.Hook] lets any operation fail.
package disk

import "io"

// FS is a file system. Names are paths; files are made and renamed durably only when SyncDir returns.
type FS interface {
	MkdirAll(dir string) error
	// List returns the names in a directory, sorted, without the directory.
	List(dir string) ([]string, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// Create makes a file, or empties it if it exists.
	Create(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	SyncDir(dir string) error
	// Lock takes a lock that ends with the process at the latest. The error [store.ErrLocked] means that another process
	// holds it.
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
	// Datasync makes the content durable, and the length where that is needed to read it.
	Datasync() error
}
