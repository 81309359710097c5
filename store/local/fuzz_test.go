// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local/disk"
)

var fuzzEvents = []store.Event{
	{Key: "/a", Record: &store.Record{Key: "/a", Value: []byte("one")}},
	{Key: "/b", Record: &store.Record{Key: "/b", Value: []byte{}, Expires: time.Unix(1, 2)}},
	{Key: "/c", Previous: &store.Record{Key: "/c"}},
}

func fuzzFrame(offset, revision int64) []byte {
	b := appendTransaction(make([]byte, frameHeader), fuzzEvents)
	b = appendCompact(b, revision)
	return seal(b, 7, offset, revision, time.Unix(3, 4))
}

// FuzzFrame decodes any bytes as a frame and its entries. What decodes encodes to what decodes the same.
func FuzzFrame(f *testing.F) {
	f.Add(fuzzFrame(0, 5))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := readFrame(b, 7, 0)
		if err == nil && fr.size >= int64(len(b))+frameAlign {
			t.Fatalf("a frame of %d bytes in %d", fr.size, len(b))
		}
		for _, body := range [][]byte{fr.body, b} {
			d := decoder{rest: body, arena: &arena{}}
			for len(d.rest) > 0 {
				e, err := d.entry()
				if err != nil {
					break
				}
				if e.compact != 0 {
					continue
				}
				again := decoder{rest: appendTransaction(nil, e.events), arena: &arena{}}
				back, err := again.entry()
				if err != nil || !slices.EqualFunc(e.events, back.events, sameEvent) {
					t.Fatalf("%v encodes to %v, %v", e, back, err)
				}
			}
		}
	})
}

func sameEvent(a, b store.Event) bool {
	if a.Key != b.Key || (a.Record == nil) != (b.Record == nil) {
		return false
	}
	return a.Record == nil || bytes.Equal(a.Record.Value, b.Record.Value) && a.Record.Expires.Equal(b.Record.Expires)
}

// FuzzSegment opens a store whose log is any bytes. It opens, or is refused as corrupt; it never panics.
func FuzzSegment(f *testing.F) {
	id := identity{1}
	whole := id.header(2)
	frame := appendTransaction(make([]byte, frameHeader), fuzzEvents[:2])
	whole = append(whole, seal(frame, id.seed(2), segmentHeader, 2, time.Unix(3, 4))...)
	f.Add(whole, true)
	f.Add(whole[:len(whole)-3], true)
	f.Add(append(slices.Clone(whole), make([]byte, 50)...), false)
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) > segmentHeader+frameHeader {
			// Let the checksums hold, so that what is behind them is reached.
			copy(b, id.header(2))
			frame := b[segmentHeader:]
			if n := int(frame[0]) | int(frame[1])<<8; n > 0 && n <= len(frame)-frameHeader {
				copy(frame[2:4], []byte{0, 0})
				copy(frame, seal(slices.Clone(frame[:frameHeader+n]), id.seed(2), segmentHeader, 2, time.Unix(3, 4))[:frameHeader])
			}
		}
		m := disk.NewMem()
		for name, content := range map[string][]byte{formatFile: []byte(formatText(id)), walName(2): b} {
			file, err := m.Create(filepath.Join("data", name))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := file.WriteAt(content, 0); err != nil {
				t.Fatal(err)
			}
		}
		e, err := Open("data", Options{Disk: m, SegmentBytes: 1 << 10})
		if err != nil {
			if !errors.Is(err, store.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if _, _, err := e.Commit(context.Background(), store.Op{Key: "/z", Value: []byte("z"), Expect: store.Any}); err != nil {
			t.Fatal(err)
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzCheckpoint reads any bytes as a checkpoint or backup. What reads back writes back to the same.
func FuzzCheckpoint(f *testing.F) {
	var whole bytes.Buffer
	w, err := newCheckpointWriter(&whole, 9, time.Unix(3, 4))
	if err != nil {
		f.Fatal(err)
	}
	for _, r := range []*store.Record{
		{Key: "/a", Value: []byte("one"), Revision: 3, Created: 2},
		{Key: "/b", Value: nil, Revision: 9, Created: 9, Expires: time.Unix(5, 6)},
	} {
		if err := w.add(r); err != nil {
			f.Fatal(err)
		}
	}
	if err := w.finish(); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add(whole.Bytes()[:checkpointHeader])
	f.Fuzz(func(t *testing.T, b []byte) {
		var again bytes.Buffer
		r, err := newCheckpointReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		w, err := newCheckpointWriter(&again, r.revision, r.at)
		if err != nil {
			t.Fatal(err)
		}
		if r.all(w.add) != nil {
			return
		}
		if err := w.finish(); err != nil {
			t.Fatal(err)
		}
		back, err := newCheckpointReader(&again)
		if err != nil {
			t.Fatal(err)
		}
		if err := back.all(func(*store.Record) error { return nil }); err != nil || back.records != r.records || back.bytes != r.bytes {
			t.Fatalf("%d records read, %d back: %v", r.records, back.records, err)
		}
	})
}

// FuzzBackup restores any bytes. It makes a store or leaves nothing that could be taken for one.
func FuzzBackup(f *testing.F) {
	var whole bytes.Buffer
	w, err := newCheckpointWriter(&whole, 9, time.Unix(3, 4))
	if err != nil {
		f.Fatal(err)
	}
	if err := w.finish(); err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add([]byte("mortckp1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := disk.NewMem()
		_, err := Restore(context.Background(), bytes.NewReader(b), "data", 0, Options{Disk: m})
		_, checked := Check(context.Background(), "data", Options{Disk: m})
		if (err == nil) != (checked == nil) {
			t.Fatalf("restore: %v, check: %v", err, checked)
		}
	})
}

// FuzzFormat reads any bytes as a format file.
func FuzzFormat(f *testing.F) {
	f.Add(formatText(identity{1, 2, 3}))
	f.Add("mortise store 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		id, err := parseFormat(text)
		if err != nil {
			if !errors.Is(err, store.ErrFormat) && !errors.Is(err, store.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		if again, err := parseFormat(formatText(id)); err != nil || again != id {
			t.Fatal(id, again, err)
		}
	})
}
