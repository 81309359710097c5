// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"fmt"
	"testing"

	"github.com/mortise-dev/mortise/store"
)

// TestFreshObjects creates many objects of a kind without watches. The cache keeps some of the newest, and the one
// that a request reads.
func TestFreshObjects(t *testing.T) {
	f := newFixture(t, 0)
	first := f.put(t, "first")
	f.views.max = freshShare * 3 * f.cachedSize(first)
	if _, err := f.Created(first); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Cached(first); err != nil { // a request reads it
		t.Fatal(err)
	}
	var records []*store.Record
	for i := range 20 {
		r := f.put(t, fmt.Sprintf("o%04d", i))
		if i%2 == 0 { // the object that was stored, or what is decoded of it
			hub, err := f.Decode(r)
			if err != nil {
				t.Fatal(err)
			}
			f.AttachCreated(r, hub)
		} else if _, err := f.Created(r); err != nil {
			t.Fatal(err)
		}
		again, err := f.Created(r) // by a follower
		if err != nil || again != f.view(r) {
			t.Fatalf("decoded again: %v", err)
		}
		records = append(records, r)
	}
	if f.view(first) == nil {
		t.Error("the cache dropped the object that a request had read")
	}
	cached := 0
	for i, r := range records {
		if f.view(r) == nil {
			continue
		}
		if cached++; i < 17 {
			t.Errorf("object %d of 20 is cached", i)
		}
	}
	if cached == 0 {
		t.Error("not even the newest object is cached")
	}
	if err := f.Feed.Start(); err != nil { // from now on, there is a watch
		t.Fatal(err)
	}
	watched := f.put(t, "watched")
	if c, err := f.Created(watched); err != nil || c.fresh.Load() {
		t.Errorf("an object that has watchers is dropped soon: %v", err)
	}
	f.views.dropIdle() // counts what has happened
	f.views.dropIdle()
	for _, r := range append(records, first, watched) {
		if f.view(r) != nil {
			t.Errorf("%s is cached at rest", r.Key)
		}
	}
	if f.views.fresh.total != 0 || len(f.views.fresh.queue) != 0 {
		t.Errorf("%d bytes in %d entries are counted at rest", f.views.fresh.total, len(f.views.fresh.queue))
	}
}

// TestEncodingsKeptTheSecondTime: what one request or one kept piece of a list needed is not kept, unless it is needed again or by watches.
func TestEncodingsKeptTheSecondTime(t *testing.T) {
	f := newFixture(t, 1<<20)
	kept := func(c *CachedObject) bool { return c.encodings[JSON].Load() != nil }
	for _, encode := range []func(*CachedObject) ([]byte, error){
		func(c *CachedObject) ([]byte, error) { return c.AnswerBytes(0, JSON) },
		func(c *CachedObject) ([]byte, error) { return c.PieceBytes(0, JSON) },
	} {
		c, err := f.Cached(f.put(t, fmt.Sprint("a", len(f.views.queue))))
		if err != nil {
			t.Fatal(err)
		}
		first, err := encode(c)
		if err != nil || kept(c) {
			t.Fatalf("the first encoding is kept; %v", err)
		}
		second, err := encode(c)
		if err != nil || !kept(c) || string(first) != string(second) {
			t.Fatalf("the second encoding is not kept, or is %s after %s: %v", second, first, err)
		}
	}
	f.Feed.Encoders[JSON].Add(1)
	c, err := f.Cached(f.put(t, "watched"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.AnswerBytes(0, JSON); err != nil || !kept(c) {
		t.Errorf("watches encode it again: %v", err)
	}
}

// TestPiecedObjects makes kept pieces of a record: the first one leaves nothing cached, a later one does.
func TestPiecedObjects(t *testing.T) {
	f := newFixture(t, 1<<20)
	created := f.put(t, "created")
	if _, err := f.Created(created); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*store.Record{f.put(t, "old"), created} {
		if c, err := f.Pieced(r); err != nil || c.Hub == nil || f.view(r) != nil {
			t.Fatalf("%s is cached after the first piece: %v", r.Key, err)
		}
		c, err := f.Pieced(r)
		if err != nil || f.view(r) != c {
			t.Fatalf("%s is not cached after the second piece: %v", r.Key, err)
		}
		if _, err := c.PieceBytes(0, JSON); err != nil || c.encodings[JSON].Load() == nil {
			t.Errorf("%s: the second encoding is not kept: %v", r.Key, err)
		}
	}
}
