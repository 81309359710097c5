// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/mortise-dev/mortise/store"
)

// TestNoEventIsLostAfterABookmark has a client whose watch is interrupted again and again, and resumes at its last
// bookmark. It receives every change of its kind once, in order, whatever changes in between, and however many changes
// of other kinds there are.
func TestNoEventIsLostAfterABookmark(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, 1<<20)
			f.Feed.capacity = 5 // some watches resume within the feed, and some from the store
			random := rand.New(rand.NewPCG(seed, 1))
			c, err := f.Feed.Cursor(t.Context(), f.store.Revision())
			if err != nil {
				t.Fatal(err)
			}
			var want, got []int64
			take := func() {
				events, _, err := c.Next(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				for i := range events {
					got = append(got, events[i].Revision)
				}
			}
			bookmark := f.store.Revision()
			resume := func() {
				c.Close()
				got = slices.DeleteFunc(got, func(r int64) bool { return r > bookmark }) // the client receives these again
				if c, err = f.Feed.Cursor(t.Context(), bookmark); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 300 {
				switch random.IntN(6) {
				case 0, 1:
					want = append(want, f.put(t, fmt.Sprint("n", i)).Revision)
				case 2:
					if _, err := f.store.Update(t.Context(), fmt.Sprint("/registry/other/", i), store.Any, []byte("{}"), 0); err != nil {
						t.Fatal(err)
					}
				case 3:
					synctest.Wait() // the feed has all of them
					for c.More() {
						take()
					}
				case 4:
					if c.More() {
						take()
					}
				case 5:
					now := c.Seen()
					if now < bookmark || now > f.store.Revision() {
						t.Fatalf("a bookmark at %d after one at %d, in a store at %d", now, bookmark, f.store.Revision())
					}
					if bookmark = now; random.IntN(2) == 0 {
						resume()
					}
				}
			}
			resume()
			synctest.Wait()
			for c.More() {
				take()
			}
			c.Close()
			if !slices.Equal(got, want) {
				t.Errorf("seed %d: told of %v, not of %v", seed, got, want)
			}
		})
	}
}

// told is a store whose watcher returns the test's events.
type told struct {
	Storage
	batches chan store.Batch
	asked   chan struct{} // receives when the watcher is asked for the next batch
}

func (s *told) Revision() int64 { return 10 }

func (s *told) Watch(context.Context, string, int64) (store.Watcher, error) { return s, nil }

func (s *told) Next(ctx context.Context) (store.Batch, error) {
	select {
	case s.asked <- struct{}{}:
	case <-ctx.Done():
		return store.Batch{}, ctx.Err()
	}
	select {
	case b := <-s.batches:
		return b, nil
	case <-ctx.Done():
		return store.Batch{}, ctx.Err()
	}
}

func (s *told) Close() {}

// TestSeenNeverRunsAhead checks that a cursor's Seen reaches the feed's revision only after the cursor has returned
// every event before it.
func TestSeenNeverRunsAhead(t *testing.T) {
	f := newFixture(t, 1<<20)
	s := &told{batches: make(chan store.Batch), asked: make(chan struct{})}
	f.Feed.storage = s
	c, err := f.Feed.Cursor(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	<-s.asked
	seen := func(when string, feed, cursor int64) {
		t.Helper()
		if f, c := f.Feed.Seen(), c.Seen(); f != feed || c != cursor {
			t.Fatalf("%s: the feed has seen %d and the cursor %d, want %d and %d", when, f, c, feed, cursor)
		}
	}
	give := func(b store.Batch) {
		s.batches <- b
		<-s.asked // the feed has taken it
	}
	events := func(revisions ...int64) (out []store.Event) {
		for _, r := range revisions {
			out = append(out, store.Event{Revision: r})
		}
		return out
	}
	seen("at the beginning", 10, 10)
	give(store.Batch{Revision: 12})
	seen("after changes of other kinds", 12, 12)
	give(store.Batch{Revision: 15, Events: events(13, 14)})
	seen("with a batch that the client has not been told", 15, 12)
	give(store.Batch{Revision: 17})
	give(store.Batch{Revision: 18, Events: events(18)})
	give(store.Batch{Revision: 20})
	seen("with two batches that the client has not been told", 20, 12)
	if got := read(t, c, 2); !slices.Equal(got, []string{"13", "14"}) {
		t.Errorf("told of %v", got)
	}
	seen("with one", 20, 15)
	if got := read(t, c, 1); !slices.Equal(got, []string{"18"}) {
		t.Errorf("told of %v", got)
	}
	seen("with none", 20, 20)
}
