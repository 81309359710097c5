// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package segments

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
)

// read is what Go's standard library reads from a stream.
func read(t testing.TB, b []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	z.Multistream(false)
	out, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func FuzzWriter(f *testing.F) {
	f.Add([]byte("apple"), []byte("banana"), []byte{}, 3)
	f.Add([]byte{}, bytes.Repeat([]byte("pod"), 1<<16), []byte("z"), 2)
	f.Fuzz(func(t *testing.T, a, b, c []byte, n int) {
		var want, got bytes.Buffer
		w := Writer{W: &got}
		for i := range n & 7 {
			piece := [][]byte{a, b, c}[i%3]
			want.Write(piece)
			s := Stored(piece)
			if i%2 == 0 {
				s = Compress(piece, nil)
			}
			if s.Size() != len(piece) {
				t.Fatalf("size %d, want %d", s.Size(), len(piece))
			}
			if err := w.Add(s); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if out := read(t, got.Bytes()); !bytes.Equal(out, want.Bytes()) {
			t.Fatalf("read %q, want %q", out, want.Bytes())
		}
	})
}

func TestJoined(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 7, 255, 4096, 1 << 20} {
		a, b := make([]byte, r.IntN(100)), make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if got, want := joined(crc32.ChecksumIEEE(a), crc32.ChecksumIEEE(b), len(b)), crc32.ChecksumIEEE(append(a, b...)); got != want {
			t.Errorf("%d bytes: %08x, want %08x", n, got, want)
		}
	}
}

// pieces are the keys of a list's pieces.
func pieces(c *Cache, form any, records []Record) (keys []Key) {
	for len(records) > 0 {
		n, key := c.Piece(form, len(records), func(i int) Record { return records[i] })
		keys, records = append(keys, key), records[n:]
	}
	return keys
}

// TestPiece changes one record of many: it changes its own piece, and with it at most the neighbours of an end that came or went.
func TestPiece(t *testing.T) {
	c := NewCache(1 << 20)
	var all []Record
	for i := range 5000 { // so small that no piece ends by its length, where a page would have other pieces until the next end by a key
		all = append(all, Record{Key: fmt.Sprintf("/registry/pods/a/web-%05d", i), Revision: int64(i), Size: 10})
	}
	before := pieces(c, "JSON", all)
	if n := len(before); n < 40 || n > 160 {
		t.Errorf("%d pieces of 5,000 records", n)
	}
	had := map[Key]bool{}
	for _, k := range before {
		had[k] = true
	}
	fresh := func(records []Record) (n int) {
		for _, k := range pieces(c, "JSON", records) {
			if !had[k] {
				n++
			}
		}
		return n
	}
	changed := append([]Record(nil), all...)
	changed[2500].Revision = 9999
	without := append(append([]Record(nil), all[:2500]...), all[2501:]...)
	for name, tc := range map[string]struct {
		records []Record
		most    int
	}{"same": {all, 0}, "changed": {changed, 1}, "deleted": {without, 2}, "page": {all[1000:2000], 2}} {
		if n := fresh(tc.records); n > tc.most {
			t.Errorf("%s: %d new pieces, want %d at most", name, n, tc.most)
		}
	}
	if n, _ := c.Piece("YAML", 9, func(int) Record { return Record{Key: "a", Size: longest} }); n != 1 {
		t.Errorf("a piece of %d large records", n)
	}
	for i, k := range pieces(c, "protobuf", all) {
		if k == before[i] {
			t.Error("two forms of the same records have one key")
		}
	}
}

func TestCache(t *testing.T) {
	c := NewCache(3 * (segmentCost + 1024))
	key := func(i int) Key { return Key{form: i} }
	piece := func(i int) *Segment { return &Segment{deflated: make([]byte, 1024), size: i} }
	made := 0
	get := func(i int) {
		t.Helper()
		s, err := c.Get(key(i), func() (*Segment, error) { made++; return piece(i), nil })
		if err != nil || s.Size() != i {
			t.Fatal(s, err)
		}
	}
	for _, i := range []int{1, 2, 3, 1, 2, 3} {
		get(i)
	}
	if made != 3 {
		t.Errorf("made %d segments, want 3", made)
	}
	get(1)
	get(4) // displaces 2, which was used longest ago
	get(1)
	get(3)
	get(4)
	if made != 4 {
		t.Errorf("made %d segments, want 4", made)
	}
	get(2)
	if made != 5 || c.total > c.max || len(c.byKey) != 3 || c.used.Len() != 3 {
		t.Errorf("made %d segments; %d bytes of %d in %d entries", made, c.total, c.max, len(c.byKey))
	}
	sick := errors.New("sick")
	if _, err := c.Get(key(9), func() (*Segment, error) { return nil, sick }); !errors.Is(err, sick) {
		t.Error(err)
	}
	get(9)
}

// TestCacheMakesOnce asks for one segment from many goroutines; the first maker fails.
func TestCacheMakesOnce(t *testing.T) {
	c := NewCache(1 << 20)
	var mu sync.Mutex
	made, failed := 0, 0
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			s, err := c.Get(Key{form: "a"}, func() (*Segment, error) {
				mu.Lock()
				defer mu.Unlock()
				if made++; made == 1 {
					return nil, errors.New("the first one fails")
				}
				return Compress([]byte(strings.Repeat("a", 100)), []int32{40, 60}), nil
			})
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed++
				return
			}
			if len(s.Items()) != 2 {
				t.Errorf("items %v", s.Items())
			}
		})
	}
	all.Wait()
	if made != 2 || failed != 1 {
		t.Errorf("made %d times, failed %d times", made, failed)
	}
}
