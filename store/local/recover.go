// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local/disk"
)

// contents is the list of a directory's files, by kind.
type contents struct {
	checkpoints []int64 // revisions, ascending
	segments    []int64 // first revisions, ascending
	leftovers   []string
}

func list(fs disk.FS, dir string) (contents, error) {
	names, err := fs.List(dir)
	if err != nil {
		return contents{}, fmt.Errorf("list store: %w", err)
	}
	var c contents
	for _, name := range names {
		if r, ok := parseName(name, checkPoint, ""); ok {
			c.checkpoints = append(c.checkpoints, r)
		} else if r, ok := parseName(name, walPrefix, walSuffix); ok {
			c.segments = append(c.segments, r)
		} else if name == walNext || name == checkNext || name == formatNext {
			c.leftovers = append(c.leftovers, name)
		}
	}
	slices.Sort(c.checkpoints)
	slices.Sort(c.segments)
	return c, nil
}

// corrupt returns the error for a place in a file.
func corrupt(dir, name string, offset int64, cause error) error {
	if errors.Is(cause, store.ErrFormat) {
		return fmt.Errorf("read %s: %w", filepath.Join(dir, name), cause)
	}
	return fmt.Errorf("read %s at offset %d: %w: %w", filepath.Join(dir, name), offset, store.ErrCorrupt, cause)
}

// replayer receives the contents of a directory, oldest first.
type replayer interface {
	begin(revision int64)
	load(r *store.Record)
	transaction(revision int64, at time.Time, events []store.Event)
	compact(revision int64)
}

// recovered is the result of a replay besides the contents.
type recovered struct {
	base     int64 // revision of the checkpoint; 1 without one
	revision int64 // newest
	segments []segment
	size     int64  // bytes of the checkpoint
	torn     int64  // bytes of the torn end, which was never acknowledged
	buffer   []byte // buffer for segments
	decoder  decoder
	unusable string // name of a newest segment without a complete header
}

// replay reads a directory, without changing it. If the store is in use, it skips the newest segment.
func replay(fs disk.FS, dir string, id identity, inUse bool, to replayer) (recovered, error) {
	c, err := list(fs, dir)
	if err != nil {
		return recovered{}, err
	}
	r := recovered{base: 1, decoder: decoder{arena: &arena{}}}
	if n := len(c.checkpoints); n > 0 {
		r.base = c.checkpoints[n-1]
		if r.size, err = replayCheckpoint(fs, dir, r.base, to); err != nil {
			return r, err
		}
	} else {
		to.begin(r.base)
	}
	r.revision = r.base
	for i, first := range c.segments {
		newest := i == len(c.segments)-1
		if newest && inUse || !newest && c.segments[i+1] <= r.base+1 {
			continue // the checkpoint has all of it; a crash came before its removal
		}
		if first > r.revision+1 {
			return r, corrupt(dir, walName(first), 0, fmt.Errorf("log before revision %d is missing, have %d", first, r.revision))
		}
		if err := r.segment(fs, dir, id, first, newest, to); err != nil {
			return r, err
		}
	}
	return r, nil
}

func replayCheckpoint(fs disk.FS, dir string, revision int64, to replayer) (int64, error) {
	name := checkpointName(revision)
	file, err := fs.Open(filepath.Join(dir, name))
	if err != nil {
		return 0, fmt.Errorf("open checkpoint: %w", err)
	}
	defer func() { _ = file.Close() }()
	size, err := file.Size()
	if err != nil {
		return 0, fmt.Errorf("open checkpoint: %w", err)
	}
	c, err := newCheckpointReader(bufio.NewReaderSize(io.NewSectionReader(file, 0, size), blockSize))
	if err != nil {
		return 0, corrupt(dir, name, 0, err)
	}
	if c.revision != revision {
		return 0, corrupt(dir, name, 0, fmt.Errorf("is of revision %d", c.revision))
	}
	to.begin(revision)
	err = c.all(func(record *store.Record) error {
		to.load(record)
		return nil
	})
	if err != nil {
		return 0, corrupt(dir, name, c.offset, err)
	}
	return size, nil
}

// segment replays one segment.
func (r *recovered) segment(fs disk.FS, dir string, id identity, first int64, newest bool, to replayer) error {
	name := walName(first)
	b, err := readInto(r.buffer, fs, filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	r.buffer = b
	if newest && tornHeader(b, id.header(first)) {
		r.torn, r.unusable = int64(len(b)), name
		return nil
	}
	if len(b) < segmentHeader || !slices.Equal(b[:segmentHeader], id.header(first)) {
		return corrupt(dir, name, 0, errors.New("segment header is not of this store and name"))
	}
	seed := id.seed(first)
	s := segment{name: name, first: first, last: first - 1, size: segmentHeader}
	for s.size < int64(len(b)) {
		f, err := readFrame(b, seed, s.size)
		if err != nil {
			if !newest {
				return corrupt(dir, name, s.size, err)
			}
			if later := validAfter(b, seed, s.size, s.last); later > 0 {
				return corrupt(dir, name, s.size, fmt.Errorf("%w, and there is valid data later, at %d", err, later))
			}
			r.torn = int64(len(b)) - s.size
			break
		}
		if f.size == 0 {
			if !newest {
				return corrupt(dir, name, s.size, errors.New("zeros in a segment that is not the newest"))
			}
			break
		}
		if f.revision != s.last+1 {
			return corrupt(dir, name, s.size, fmt.Errorf("revision %d follows %d", f.revision, s.last))
		}
		if err := r.frame(f, &s, to); err != nil {
			return corrupt(dir, name, s.size, err)
		}
		s.size += f.size
	}
	r.segments = append(r.segments, s)
	return nil
}

// tornHeader reports whether a segment has only the beginning of its header, and zeros.
func tornHeader(b, header []byte) bool {
	n := 0
	for n < len(b) && n < len(header) && b[n] == header[n] {
		n++
	}
	return n < len(header) && allZero(b[n:])
}

// frame replays one frame of a segment. It skips what the checkpoint already has.
func (r *recovered) frame(f frame, s *segment, to replayer) error {
	d := &r.decoder
	d.rest = f.body
	for len(d.rest) > 0 {
		e, err := d.entry()
		if err != nil {
			return err
		}
		if e.compact != 0 {
			if e.compact > s.last {
				return errMalformed
			}
			to.compact(e.compact)
			continue
		}
		s.last++
		if s.last <= r.revision {
			continue
		}
		r.revision = s.last
		to.transaction(s.last, f.at, e.events)
	}
	return nil
}

// validAfter looks for a valid frame after an invalid one, and returns its offset, 0 if there is none.
func validAfter(b []byte, seed uint32, offset, last int64) int64 {
	const near = 1 << 32 // more revisions than one segment can hold
	for o := offset + frameAlign; o+frameHeader < int64(len(b)); o += frameAlign {
		length := int64(binary.LittleEndian.Uint32(b[o:]))
		if length == 0 || length > int64(len(b))-o-frameHeader {
			continue
		}
		revision := int64(binary.LittleEndian.Uint64(b[o+8:]))
		if revision <= last || revision > last+near {
			continue
		}
		if checksum(b[o:], seed, o) == binary.LittleEndian.Uint32(b[o+4:]) {
			return o
		}
	}
	return 0
}
