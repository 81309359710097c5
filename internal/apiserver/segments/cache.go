// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package segments

import (
	"container/list"
	"hash/maphash"
	"strconv"
	"sync"
)

// A piece of a list ends after a record whose key's hash is a multiple of [often], and after [longest] bytes as they are stored. So a
// record that comes or goes changes the piece that it is in, and no other.
const (
	often   = 64
	longest = 256 << 10
)

// Cache keeps the segments that were asked for last. It can be used by many goroutines at once.
type Cache struct {
	max   int64
	seeds [3]maphash.Seed

	mu    sync.Mutex
	total int64
	byKey map[Key]*list.Element // of *entry
	used  *list.List            // the one used last is in front
}

// Key says what a segment is made of.
type Key struct {
	form     any
	contents [2]uint64
}

// entry is a segment that is there, or that a caller makes.
type entry struct {
	key     Key
	made    chan struct{} // closed when it is there, or could not be made
	segment *Segment      // nil: it could not be made
}

// NewCache keeps segments of about max bytes.
func NewCache(max int64) *Cache {
	return &Cache{max: max, seeds: [3]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed(), maphash.MakeSeed()},
		byKey: map[Key]*list.Element{}, used: list.New()}
}

// Record is what a cache knows of an object: a key and the revision of its last write name its contents, of which there are size bytes.
type Record struct {
	Key      string
	Revision int64
	Size     int
}

// Piece returns how many of n records, of which there is one at least, make up the first piece, and the key of its segment. The form
// tells apart all that is made of the same records; it is comparable. Two 64-bit hashes with secret seeds stand for the records.
func (c *Cache) Piece(form any, n int, record func(i int) Record) (int, Key) {
	b := make([]byte, 0, 4<<10)
	end, size := 0, 0
	for end < n {
		r := record(end)
		end++
		b = append(b, r.Key...)
		b = append(b, 0)
		b = append(strconv.AppendInt(b, r.Revision, 36), 0)
		if size += r.Size; size >= longest || maphash.String(c.seeds[2], r.Key)%often == 0 {
			break
		}
	}
	return end, Key{form: form, contents: [2]uint64{maphash.Bytes(c.seeds[0], b), maphash.Bytes(c.seeds[1], b)}}
}

// Get returns the segment of a key. If it is not there, one caller makes it, and the others wait for that one.
func (c *Cache) Get(key Key, compress func() (*Segment, error)) (*Segment, error) {
	for {
		e, mine := c.enter(key)
		if mine {
			return c.fill(e, compress)
		}
		<-e.made
		if e.segment != nil {
			return e.segment, nil
		}
	}
}

// enter finds the entry of a key, or makes one, which the caller has to fill.
func (c *Cache) enter(key Key) (e *entry, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.byKey[key]; ok {
		c.used.MoveToFront(at)
		return at.Value.(*entry), false
	}
	e = &entry{key: key, made: make(chan struct{})}
	c.byKey[key] = c.used.PushFront(e)
	return e, true
}

func (c *Cache) fill(e *entry, compress func() (*Segment, error)) (s *Segment, err error) {
	defer func() { // also when compress panics
		c.mu.Lock()
		defer c.mu.Unlock()
		defer close(e.made)
		if err != nil || s == nil {
			c.remove(c.byKey[e.key])
			return
		}
		e.segment = s
		c.total += s.cost()
		for at := c.used.Back(); at != nil && c.total > c.max; {
			before := at.Prev()
			if at.Value.(*entry).segment != nil {
				c.remove(at)
			}
			at = before
		}
	}()
	return compress()
}

// remove forgets an entry. The caller holds the lock.
func (c *Cache) remove(at *list.Element) {
	e := c.used.Remove(at).(*entry)
	delete(c.byKey, e.key)
	if e.segment != nil {
		c.total -= e.segment.cost()
	}
}
