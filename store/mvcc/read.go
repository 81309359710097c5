// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/mortise-dev/mortise/store"
)

// Revision returns the newest published revision.
func (d *DB) Revision() int64 { return d.head.Load().revision }

// Compacted returns the oldest revision that reads and watches can name.
func (d *DB) Compacted() int64 { return d.history.compacted.Load() }

// Size returns the size of the published state.
func (d *DB) Size() store.Size {
	h := d.head.Load()
	return store.Size{
		Keys: int64(h.index.Len()), Bytes: h.bytes,
		History: d.history.events.end.Load() - d.history.events.begin(),
	}
}

func (d *DB) usable(ctx context.Context) error {
	select {
	case <-d.closed:
		return store.ErrClosed
	default:
		return ctx.Err()
	}
}

// Get returns the key's record, nil if absent, and the revision of the read.
func (d *DB) Get(ctx context.Context, key string) (*store.Record, int64, error) {
	if err := d.usable(ctx); err != nil {
		return nil, 0, err
	}
	h := d.head.Load()
	r, _ := h.index.Get(key)
	return r, h.revision, nil
}

// Range reads the records under a prefix from one snapshot.
func (d *DB) Range(ctx context.Context, r store.Range) (store.Page, error) {
	if err := d.usable(ctx); err != nil {
		return store.Page{}, err
	}
	return d.Snapshot().Range(r)
}

// Snapshot is the state at one revision, and the history before it as long as that is kept.
type Snapshot struct {
	db   *DB
	head *head
}

// Snapshot returns the newest published state.
func (d *DB) Snapshot() Snapshot { return Snapshot{db: d, head: d.head.Load()} }

// Revision returns the snapshot's revision.
func (s Snapshot) Revision() int64 { return s.head.revision }

// Len returns the number of keys.
func (s Snapshot) Len() int { return s.head.index.Len() }

// Ascend calls f for each record in key order until f returns false.
func (s Snapshot) Ascend(f func(*store.Record) bool) {
	s.head.index.Scan(func(_ string, r *store.Record) bool { return f(r) })
}

// Range reads the records under a prefix.
func (s Snapshot) Range(r store.Range) (store.Page, error) {
	if r.Limit < 0 || r.Revision < 0 {
		return store.Page{}, fmt.Errorf("read range: %w: limit %d, revision %d", store.ErrInvalid, r.Limit, r.Revision)
	}
	if r.Revision == 0 || r.Revision == s.head.revision {
		return s.read(r), nil
	}
	if r.Revision > s.head.revision {
		return store.Page{}, fmt.Errorf("read revision %d of %d: %w", r.Revision, s.head.revision, store.ErrFuture)
	}
	past, err := s.rewind(r)
	if err != nil {
		return store.Page{}, err
	}
	return s.readPast(r, past), nil
}

// start returns the smallest key that the range may hold, end the smallest after the prefix ("" if there is none).
func start(r store.Range) string {
	if r.After != "" && r.After >= r.Prefix {
		return r.After + "\x00"
	}
	return r.Prefix
}

func end(prefix string) string {
	b := []byte(prefix)
	for len(b) > 0 && b[len(b)-1] == 0xff {
		b = b[:len(b)-1]
	}
	if len(b) == 0 {
		return ""
	}
	b[len(b)-1]++
	return string(b)
}

// rank returns how many keys sort before key.
func (h *head) rank(key string) int {
	return sort.Search(h.index.Len(), func(i int) bool {
		k, _, _ := h.index.GetAt(i)
		return k >= key
	})
}

func (s Snapshot) read(r store.Range) store.Page {
	page := store.Page{Revision: s.head.revision}
	from := start(r)
	to := s.head.index.Len()
	if e := end(r.Prefix); e != "" {
		to = s.head.rank(e)
	}
	n := to - s.head.rank(from)
	if n <= 0 {
		return page
	}
	if r.Limit > 0 && n > r.Limit {
		page.Remaining = int64(n - r.Limit)
		n = r.Limit
	}
	page.Records = make([]*store.Record, 0, n)
	s.head.index.Ascend(from, func(_ string, record *store.Record) bool {
		page.Records = append(page.Records, record)
		return len(page.Records) < n
	})
	return page
}

// rewind returns what the keys under the prefix that changed after r.Revision held then, nil for none.
func (s Snapshot) rewind(r store.Range) (map[string]*store.Record, error) {
	c := s.db.cursor(r.Prefix)
	gone := fmt.Errorf("read revision %d: %w", r.Revision, store.ErrCompacted)
	if r.Revision < s.db.Compacted() {
		return nil, gone
	}
	past := map[string]*store.Record{}
	stop := c.end()
	for p := c.after(r.Revision, stop); p < stop; p++ {
		e, ok := c.at(p)
		if !ok {
			return nil, gone
		}
		if e.Revision > s.head.revision {
			break
		}
		if !strings.HasPrefix(e.Key, r.Prefix) {
			continue
		}
		if _, seen := past[e.Key]; !seen {
			past[e.Key] = e.Previous
		}
	}
	// Only now is it certain that no event was trimmed before the loop read it.
	if r.Revision < s.db.Compacted() {
		return nil, gone
	}
	return past, nil
}

// readPast reads the range with the keys of past restored.
func (s Snapshot) readPast(r store.Range, past map[string]*store.Record) store.Page {
	page := store.Page{Revision: r.Revision}
	s.ascendPast(start(r), r.Prefix, past, func(record *store.Record) bool {
		if r.Limit > 0 && len(page.Records) >= r.Limit {
			page.Remaining++
		} else {
			page.Records = append(page.Records, record)
		}
		return true
	})
	return page
}

// ascendPast calls f for the records under the prefix from a key on, with the keys of past restored.
func (s Snapshot) ascendPast(from, prefix string, past map[string]*store.Record, f func(*store.Record) bool) {
	old := make([]*store.Record, 0, len(past))
	for _, record := range past {
		if record != nil && record.Key >= from {
			old = append(old, record)
		}
	}
	slices.SortFunc(old, func(a, b *store.Record) int { return strings.Compare(a.Key, b.Key) })
	more := true
	s.head.index.Ascend(from, func(key string, record *store.Record) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		for more && len(old) > 0 && old[0].Key <= key {
			more = f(old[0])
			old = old[1:]
		}
		if _, changed := past[key]; more && !changed {
			more = f(record)
		}
		return more
	})
	for ; more && len(old) > 0; old = old[1:] {
		more = f(old[0])
	}
}

// AscendAt calls f for each record at an older revision, in key order, until f returns false.
func (s Snapshot) AscendAt(revision int64, f func(*store.Record) bool) error {
	past, err := s.rewind(store.Range{Revision: revision})
	if err != nil {
		return err
	}
	s.ascendPast("", "", past, f)
	return nil
}
