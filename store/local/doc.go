// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package local is the durable store engine: one directory, one process. A commit is acknowledged when it is on the disk.
//
//	e, err := local.Open(dir, local.Options{})
//	s := store.New(e)
//	defer s.Close()
//
// # The directory
//
//	format                        what wrote it; an unknown one is refused with store.ErrFormat
//	lock                          held with flock while open; a second process gets store.ErrLocked
//	checkpoint-00000000000000001200   all keys as of revision 1200; none while the first log is still there
//	wal-00000000000000001150.log      the write-ahead log, in segments named by their first revision
//	wal-00000000000000001480.log      only the newest is written to
//
// The state is the checkpoint and all that the log holds after its revision. The log reaches back as far as the history
// that watches may resume from, so that they can also from before a restart. When enough of the log is older than the
// history, a new checkpoint is written as of the oldest revision that is kept, and the segments before it are removed.
// Enough is as much as the state is big, and at least two segments; at four times that, commits wait for the checkpoint.
// So the disk holds at most two checkpoints, the history, and a small multiple of the state.
//
// # A commit's way
//
//	caller      stages the change in the index (package mvcc) and its bytes in the pending frame, and waits
//	committer   takes the pending frame, with what all callers put there while the last one was synced:
//	            one write, one fdatasync, publish, wake the callers
//
// A frame is thus the atomic unit: it has its length, first revision, time and a crc32c that also covers the store's
// identity and the frame's position. Segments are preallocated, so that the sync need not write a length. The next frame is
// only written when the previous one is durable. Hence, on opening: an invalid frame with no valid one after it is the torn
// end, which was never acknowledged, and is cut off; one that is followed by a valid frame is corruption, and the store
// refuses to open with store.ErrCorrupt, naming file and offset.
//
// # When the disk fails
//
// After an error of a write or sync the content of the disk is unknown, and a retry may report false success. The pending
// commits fail, and all later ones with store.ErrReadOnly until the store is opened again. Reads and watches continue; they
// never saw data that was not durable. A disk that is full when the next segment is made is different: nothing was written,
// commits fail with store.ErrNoSpace, and succeed again when there is space.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package local
