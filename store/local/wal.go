// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local/disk"
)

// A segment of the log begins with
//
//	0   8  "mortwal1"
//	8  16  identity of the store
//	24  8  revision of the first transaction
//	32  4  zero
//	36  4  crc32c of the above
//
// and holds frames. All segments but the newest end with their last frame; zeros follow that of the newest.
const (
	walMagic      = "mortwal1"
	segmentHeader = 40
	identityBytes = 16

	walPrefix  = "wal-"
	walSuffix  = ".log"
	walNext    = "wal-next.tmp"
	checkPoint = "checkpoint-"
	checkNext  = "checkpoint-next.tmp"
)

func walName(first int64) string { return fmt.Sprintf("%s%020d%s", walPrefix, first, walSuffix) }

func checkpointName(revision int64) string { return fmt.Sprintf("%s%020d", checkPoint, revision) }

// parseName returns the revision in a file's name, or false if the name is of another kind.
func parseName(name, prefix, suffix string) (int64, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	digits, ok = strings.CutSuffix(digits, suffix)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	revision, err := strconv.ParseInt(digits, 10, 64)
	return revision, err == nil && revision > 0
}

type identity [identityBytes]byte

// seed is the initial value of the checksums of a segment's frames.
func (id identity) seed(first int64) uint32 {
	var b [identityBytes + 8]byte
	copy(b[:], id[:])
	binary.LittleEndian.PutUint64(b[identityBytes:], uint64(first))
	return crc32.Checksum(b[:], castagnoli)
}

func (id identity) header(first int64) []byte {
	b := make([]byte, segmentHeader)
	copy(b, walMagic)
	copy(b[8:], id[:])
	binary.LittleEndian.PutUint64(b[24:], uint64(first))
	binary.LittleEndian.PutUint32(b[36:], crc32.Checksum(b[:36], castagnoli))
	return b
}

// segment is a file of the log.
type segment struct {
	name  string
	first int64 // revision of the first transaction
	last  int64 // of the last; first-1 if there is none
	size  int64 // bytes used
}

// wal is the log that is written. One goroutine at a time appends; others may list the segments and drop old ones.
type wal struct {
	fs           disk.FS
	dir          string
	id           identity
	segmentBytes int64

	mu       sync.Mutex
	segments []segment

	file     disk.File // the newest; nil before the first append
	reserved int64     // its length
	seed     uint32
}

// append writes a frame with its first and last revision, and returns when it is durable. After store.ErrNoSpace the log is as before;
// after any other error its content is unknown.
func (w *wal) append(frame []byte, first, last int64, at time.Time) error {
	need := int64(len(frame)) + frameAlign
	if w.file == nil || w.current().size+need > w.reserved {
		if err := w.roll(first, need); err != nil {
			return err
		}
	}
	offset := w.current().size
	frame = seal(frame, w.seed, offset, first, at)
	if _, err := w.file.WriteAt(frame, offset); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	if err := w.file.Datasync(); err != nil {
		return fmt.Errorf("sync log: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &w.segments[len(w.segments)-1]
	s.size += int64(len(frame))
	s.last = last
	return nil
}

func (w *wal) current() segment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.segments[len(w.segments)-1]
}

// roll begins a new segment.
func (w *wal) roll(first, need int64) error {
	reserve := max(w.segmentBytes, segmentHeader+need)
	next := filepath.Join(w.dir, walNext)
	file, err := w.prepare(next, first, reserve)
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			_ = w.fs.Remove(next) // best effort: the next attempt truncates it
			return fmt.Errorf("make log segment: %w: %w", store.ErrNoSpace, err)
		}
		return fmt.Errorf("make log segment: %w", err)
	}
	// Truncate the old segment to its used size before there is a newer one.
	if err := w.finish(); err != nil {
		_ = file.Close()
		return err
	}
	name := walName(first)
	if err := w.fs.Rename(next, filepath.Join(w.dir, name)); err != nil {
		_ = file.Close()
		return fmt.Errorf("name log segment: %w", err)
	}
	if err := w.fs.SyncDir(w.dir); err != nil {
		_ = file.Close()
		return fmt.Errorf("sync directory: %w", err)
	}
	w.file, w.reserved, w.seed = file, reserve, w.id.seed(first)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.segments = append(w.segments, segment{name: name, first: first, last: first - 1, size: segmentHeader})
	return nil
}

// prepare creates a segment under a temporary name.
func (w *wal) prepare(name string, first, reserve int64) (disk.File, error) {
	file, err := w.fs.Create(name)
	if err != nil {
		return nil, err
	}
	err = file.Allocate(reserve)
	if err == nil {
		_, err = file.WriteAt(w.id.header(first), 0)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// finish truncates the newest segment to its used size and closes it.
func (w *wal) finish() error {
	if w.file == nil {
		return nil
	}
	file := w.file
	w.file = nil
	if err := file.Truncate(w.current().size); err != nil {
		_ = file.Close()
		return fmt.Errorf("finish log segment: %w", err)
	}
	if err := file.Sync(); err != nil {
		_ = file.Close()
		return fmt.Errorf("finish log segment: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("finish log segment: %w", err)
	}
	return nil
}

// abandon closes the newest segment as it is, after a failure.
func (w *wal) abandon() {
	if w.file != nil {
		_ = w.file.Close() // its contents are unknown already
		w.file = nil
	}
}

// resume opens the newest segment for appending after its last valid frame; it zeroes what follows.
func (w *wal) resume() error {
	s := w.current()
	file, err := w.fs.Open(filepath.Join(w.dir, s.name))
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	reserve := max(w.segmentBytes, s.size)
	if err = file.Truncate(s.size); err == nil {
		err = file.Allocate(reserve)
	}
	if err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) {
		reserve, err = s.size, nil // the next append requests space again
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Close()
		return fmt.Errorf("reserve log: %w", err)
	}
	w.file, w.reserved, w.seed = file, reserve, w.id.seed(s.first)
	return nil
}

// droppable returns how many bytes of whole segments hold nothing after revision.
func (w *wal) droppable(revision int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var n int64
	for _, s := range w.segments[:max(len(w.segments)-1, 0)] {
		if s.last > revision {
			break
		}
		n += s.size
	}
	return n
}

// drop removes whole segments that hold nothing after revision.
func (w *wal) drop(revision int64) error {
	for {
		w.mu.Lock()
		if len(w.segments) < 2 || w.segments[0].last > revision {
			w.mu.Unlock()
			return nil
		}
		name := w.segments[0].name
		w.segments = append([]segment{}, w.segments[1:]...)
		w.mu.Unlock()
		if err := w.fs.Remove(filepath.Join(w.dir, name)); err != nil {
			return fmt.Errorf("remove old log: %w", err)
		}
	}
}

// list returns the segments; all but the last are complete.
func (w *wal) list() []segment {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]segment{}, w.segments...)
}

// readFile reads a whole file.
func readFile(fs disk.FS, name string) ([]byte, error) { return readInto(nil, fs, name) }

// readInto reads a whole file, into the buffer if it is big enough.
func readInto(buffer []byte, fs disk.FS, name string) ([]byte, error) {
	file, err := fs.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if int64(cap(buffer)) < size {
		buffer = make([]byte, size)
	}
	buffer = buffer[:size]
	if _, err := io.ReadFull(io.NewSectionReader(file, 0, size), buffer); err != nil {
		return nil, err
	}
	return buffer, nil
}
