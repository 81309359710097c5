// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package store keeps bytes under keys, in revisions: it holds a Mortise cluster's state.
//
// There are only a few types. Implementers write an [Engine]: seven operations and a list of named promises. Users hold a [Store]: it wraps
// an engine, adds the everyday forms (create, update, delete), and finds the optional abilities of engines. A [Record] is one key's value
// at one revision, immutable and shared by all readers. A [Watcher] is a cursor over the history of a prefix.
//
//	s := store.New(memory.Open(memory.Options{}))
//	defer s.Close()
//	r, err := s.Create(ctx, "/registry/pods/default/a", value, 0)           // *ConflictError if it exists
//	r, err = s.Update(ctx, r.Key, r.Revision, value2, 0)                    // *ConflictError if it has moved on
//	page, err := s.List(ctx, "/registry/pods/")                            // one consistent snapshot
//	w, err := s.Watch(ctx, "/registry/pods/", page.Revision)               // every change after that snapshot
//	batch, err := w.Next(ctx)
//
// # Revisions
//
// The store has one logical clock. Each transaction with changes takes the next revision, atomically: all its changes have the same one.
// Reads and watches can name any revision between [Store.Compacted] and [Store.Revision]. A reader that lists at revision r and then
// watches after r sees every state of the prefix, once, in order.
//
// # Concurrency
//
// Everything is safe for concurrent use but a [Watcher], which belongs to one goroutine. Reads work on immutable snapshots and never wait
// for a writer. Records and their values are shared and must not be changed.
//
// # Packages
//
//	mvcc       the index and its history, without I/O: the base of this module's engines
//	memory     an engine in memory
//	local      a durable engine: write-ahead log, checkpoints, one directory
//	etcd       an engine on an etcd cluster, which other servers use at the same time
//	faulty     a decorator that fails on demand, for tests
//	metered    a decorator that counts and times operations
//	storetest  one entry point that tests each promise of an engine
//
// # Stability
//
// [Engine] does not change: an engine that passes storetest goes on to work. New abilities of engines come as optional interfaces, and
// what else this package exports only grows. A committed list of it is compared in a test.
package store
