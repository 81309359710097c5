// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package mvcc is the core of this module's engines: an ordered index of records, and a bounded history of their changes. It does no I/O
// and reads no clock. An engine feeds it and decides when a change counts as committed.
//
// # Commits
//
// A change has three steps, so that many changes can share one write to a disk:
//
//	Stage    checks the conditions against everything staged before it, takes the next revision, changes the staged
//	         index. No reader sees it yet.
//	Seal     ends a group: all changes staged since the last Seal are one [Group]. Staging continues meanwhile.
//	Publish  makes a group visible: it appends the events to the history, makes the index as of the seal the new head,
//	         and wakes waiting watchers. Groups are published in the order of their seals.
//
// For example, with the log's disk busy syncing the first group:
//
//	            staged   sealed   published     what Get sees
//	Stage a=1        2        -           1     nothing
//	Seal             2        2           1     nothing
//	Stage b=1        3        2           1     nothing           (staged while the first group is being synced)
//	Publish          3        2           2     a
//	Seal, Publish    3        3           3     a, b
//
// If the group cannot be written, Rollback resets the staged index to the head, and no reader ever saw the change.
//
// # Reading
//
// The head is an immutable copy-on-write index behind an atomic pointer: Get and Range load it and take no lock. A Range at an older
// revision rewinds: it reads the head and restores, from the history, what the keys held before.
//
// # Watching
//
// The history is a stream of events in chunks. Beside the whole stream there is a stream of positions for each bucket, which is the first
// two segments of the key ("/registry/pods/"): a watcher of pods never looks at the events of leases. A [Watcher] is only a position in a
// stream: it holds no queue and no lock, and it keeps no history alive. It waits on a channel that the publisher closes when the bucket has
// something new.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package mvcc
