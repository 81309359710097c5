// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// commit stages and publishes one transaction.
func commit(t testing.TB, d *DB, now time.Time, ops ...store.Op) Change {
	t.Helper()
	c, err := d.Stage(now, ops)
	if err != nil {
		t.Fatal(err)
	}
	d.Publish(now, d.Seal())
	return c
}

func put(key, value string) store.Op {
	return store.Op{Key: key, Value: []byte(value), Expect: store.Any}
}

func TestBucketName(t *testing.T) {
	for key, want := range map[string]string{
		"/registry/pods/default/a": "/registry/pods/",
		"/registry/pods/":          "/registry/pods/",
		"/registry/pods":           "",
		"registry/pods/a":          "registry/pods/",
		"registry/":                "",
		"/":                        "",
		"//":                       "",
		"///x":                     "///",
		"":                         "",
	} {
		if got := bucketName(key); got != want {
			t.Errorf("%q: %q, want %q", key, got, want)
		}
	}
}

func TestStream(t *testing.T) {
	s := newStream[int64](2)
	kept := int64(0)
	for i := range int64(100) {
		s.append(i)
		if i%7 == 6 {
			kept = i - i%5
			s.trim(kept)
		}
		for p := kept; p <= i; p++ {
			if v, ok := s.at(p); !ok || v != p {
				t.Fatalf("at %d of [%d, %d]: %d, %v", p, kept, i, v, ok)
			}
			if got := s.search(s.end.Load(), func(v int64) bool { return v >= p }); got != p {
				t.Fatalf("search %d: %d", p, got)
			}
		}
		if kept > 0 {
			if _, ok := s.at(kept - 1); ok {
				t.Fatalf("%d is there, trimmed to %d", kept-1, kept)
			}
		}
	}
	s.trim(s.end.Load())
	s.append(100)
	if v, ok := s.at(100); !ok || v != 100 {
		t.Errorf("after trimming all: %d, %v", v, ok)
	}
}

// TestUnpublished follows the example of the package comment.
func TestUnpublished(t *testing.T) {
	ctx := context.Background()
	d := New(1, Options{})
	see := func(want int64, keys int) {
		t.Helper()
		page, err := d.Range(ctx, store.Range{})
		if err != nil || page.Revision != want || len(page.Records) != keys {
			t.Fatalf("revision %d with %d keys, %v, want %d with %d", page.Revision, len(page.Records), err, want, keys)
		}
	}
	stage := func(op store.Op) {
		t.Helper()
		if _, err := d.Stage(epoch, []store.Op{op}); err != nil {
			t.Fatal(err)
		}
	}
	stage(put("a", "1"))
	see(1, 0)
	first := d.Seal()
	stage(put("b", "1"))
	see(1, 0)
	d.Publish(epoch, first)
	see(2, 1)
	d.Publish(epoch, d.Seal())
	see(3, 2)
	stage(store.Op{Key: "c", Value: []byte("x"), TTL: time.Second})
	stage(store.Op{Key: "a", Expect: store.Any})
	d.Rollback()
	if d.Staged() != 3 || !d.NextExpiry().IsZero() {
		t.Errorf("after a rollback staged is %d, the next expiry %v", d.Staged(), d.NextExpiry())
	}
	if c := commit(t, d, epoch, put("a", "2")); c.Revision != 4 || c.Events[0].Previous == nil {
		t.Errorf("after a rollback: %+v", c)
	}
	see(4, 2)
}

func TestHistoryBounds(t *testing.T) {
	ctx := context.Background()
	for name, test := range map[string]struct {
		options Options
		every   time.Duration
		min     int64 // events that must be kept
		max     int64
	}{
		"revisions": {Options{HistoryRevisions: 100}, 0, 100, 107},
		"time":      {Options{HistoryTime: time.Minute}, time.Second, 59, 62},
		"bytes":     {Options{HistoryBytes: 100 * (100 + eventOverhead)}, 0, 99, 107},
		"default":   {Options{}, 0, 1000, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			d := New(1, test.options)
			now := epoch
			for i := range 1000 {
				now = now.Add(test.every)
				commit(t, d, now, store.Op{Key: fmt.Sprint("/r/pods/", i%10), Value: make([]byte, 100), Expect: store.Any})
			}
			if n := d.Size().History; n < test.min || n > test.max {
				t.Errorf("%d events are kept, want %d to %d", n, test.min, test.max)
			}
			if got, want := d.Compacted(), d.Revision()-d.Size().History; got != want {
				t.Errorf("compacted to %d, want %d", got, want)
			}
			if _, err := d.Watch(ctx, "", d.Compacted()); err != nil {
				t.Error(err)
			}
			if _, err := d.Range(ctx, store.Range{Revision: d.Compacted(), Prefix: "/r/pods/"}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	d := New(1, Options{MaxTransaction: 100, MaxBytes: 250})
	if _, err := d.Stage(epoch, []store.Op{put("a", string(make([]byte, 100)))}); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("a transaction of 101 bytes: %v", err)
	}
	for _, key := range []string{"a", "b"} {
		commit(t, d, epoch, put(key, string(make([]byte, 99))))
	}
	if _, err := d.Stage(epoch, []store.Op{put("c", string(make([]byte, 99)))}); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("300 bytes in all: %v", err)
	}
	commit(t, d, epoch, put("a", "small")) // what shrinks may go on
	commit(t, d, epoch, put("c", string(make([]byte, 99))))
	if s := d.Size(); s.Bytes != 206 || s.Keys != 3 {
		t.Errorf("%+v", s)
	}
}

// TestHalfPublished reads between the steps of a publication, when events are in the history that the head has not
// reached: nobody sees them.
func TestHalfPublished(t *testing.T) {
	ctx := context.Background()
	d := New(1, Options{})
	commit(t, d, epoch, put("/r/x/a", "1"))
	w, err := d.Watch(ctx, "/r/x/", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Stage(epoch, []store.Op{put("/r/x/a", "2")}); err != nil {
		t.Fatal(err)
	}
	g := d.Seal()
	d.history.append(g.events, d.touched)
	if b, err := w.Next(ctx); err != nil || len(b.Events) != 1 || b.Revision != 2 {
		t.Errorf("%+v, %v", b, err)
	}
	if b, ok, err := w.read(); ok || err != nil {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := d.Watch(ctx, "/r/x/", 3); !errors.Is(err, store.ErrFuture) {
		t.Errorf("watch after a revision that is not published: %v", err)
	}
	d.head.Store(g.head)
	if b, err := w.Next(ctx); err != nil || len(b.Events) != 1 || b.Revision != 3 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestIdleWatcher has a watcher wait under one prefix while another's history is compacted: it has missed nothing.
func TestIdleWatcher(t *testing.T) {
	ctx := context.Background()
	d := New(1, Options{HistoryRevisions: 10})
	w, err := d.Watch(ctx, "/r/quiet/", 1)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		commit(t, d, epoch, put("/r/busy/a", "x"))
	}
	commit(t, d, epoch, put("/r/quiet/a", "x"))
	b, err := w.Next(ctx)
	if err != nil || len(b.Events) != 1 || b.Revision != 102 {
		t.Errorf("%+v, %v", b, err)
	}
}

// TestViews drops the views of superseded records, not of live ones.
func TestViews(t *testing.T) {
	d := New(1, Options{})
	first := commit(t, d, epoch, put("/r/x/a", "1")).Records[0]
	other := commit(t, d, epoch, put("/r/x/b", "1")).Records[0]
	first.SetView(1)
	other.SetView(2)
	for range viewEvents + 2 {
		commit(t, d, epoch, put("/r/x/a", "2"))
	}
	if first.View() != nil || other.View() != 2 {
		t.Errorf("views %v and %v", first.View(), other.View())
	}
}

// TestReplacedExpiries updates keys that expire late: the records that were replaced are not kept until then.
// TestMade: who writes is told of the record before anybody else can have it, and of none that is not made.
func TestMade(t *testing.T) {
	d := New(1, Options{})
	var made []*store.Record
	op := store.Op{Key: "k", Value: []byte("v"), Made: func(r *store.Record) {
		made = append(made, r)
		r.SetView("seen")
	}}
	change, err := d.Stage(time.Now(), []store.Op{op})
	if err != nil {
		t.Fatal(err)
	}
	if len(made) != 1 || made[0] != change.Records[0] || made[0].Revision != change.Revision || made[0].View() != "seen" {
		t.Errorf("told of %v, made %v", made, change.Records)
	}
	if _, err := d.Stage(time.Now(), []store.Op{op}); err == nil || len(made) != 1 {
		t.Errorf("a key that is there: %v, told of %d records", err, len(made))
	}
}

func TestReplacedExpiries(t *testing.T) {
	d := New(1, Options{HistoryRevisions: 1})
	for i := range 10_000 {
		commit(t, d, epoch, store.Op{Key: fmt.Sprint(i % 100), Value: []byte("x"), Expect: store.Any, TTL: time.Hour})
	}
	if n := len(d.expiries); n > 400 {
		t.Errorf("%d records wait for their expiry, 100 are live", n)
	}
	if c := d.StageExpired(epoch.Add(time.Hour)); len(c.Events) != 100 {
		t.Errorf("%d keys expire, want 100", len(c.Events))
	}
	if n := len(d.expiries); n > 0 && !d.NextExpiry().IsZero() {
		t.Errorf("%d records are left", n)
	}
}

// TestManyBuckets makes more prefixes than there are buckets.
func TestManyBuckets(t *testing.T) {
	ctx := context.Background()
	d := New(1, Options{})
	var ops []store.Op
	for i := range maxBuckets + 10 {
		ops = append(ops, put(fmt.Sprintf("/%d/x/a", i), "1"))
	}
	commit(t, d, epoch, ops...)
	for _, i := range []int{0, maxBuckets + 9} {
		w, err := d.Watch(ctx, fmt.Sprintf("/%d/x/", i), 1)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := w.Next(ctx); err != nil || len(b.Events) != 1 {
			t.Errorf("bucket %d: %d events, %v", i, len(b.Events), err)
		}
	}
}

// TestReadersBeside runs readers of all kinds beside a writer that compacts; the race detector is the judge, and each
// snapshot must be whole: both keys are always of the same revision.
func TestReadersBeside(t *testing.T) {
	ctx := context.Background()
	d := New(1, Options{HistoryRevisions: 20})
	commit(t, d, epoch, put("/r/x/a", "1"), put("/r/x/b", "1"))
	var readers, writer sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			w, err := d.Watch(ctx, "/r/x/", d.Compacted())
			for {
				select {
				case <-stop:
					return
				default:
				}
				for _, revision := range []int64{0, max(2, d.Revision()-5)} {
					page, failed := d.Range(ctx, store.Range{Prefix: "/r/x/", Revision: revision})
					if errors.Is(failed, store.ErrCompacted) {
						continue
					}
					if failed != nil || len(page.Records) != 2 || page.Records[0].Revision != page.Records[1].Revision ||
						page.Records[0].Revision > page.Revision {
						t.Errorf("at %d: %d records, %v", page.Revision, len(page.Records), failed)
						return
					}
				}
				if err == nil {
					var b store.Batch
					if b, err = w.Next(ctx); err == nil && len(b.Events)%2 != 0 {
						t.Errorf("%d events", len(b.Events))
					}
				}
				if errors.Is(err, store.ErrCompacted) {
					w, err = d.Watch(ctx, "/r/x/", d.Revision())
				}
				if err != nil && !errors.Is(err, store.ErrCompacted) && !errors.Is(err, store.ErrClosed) {
					t.Error(err)
					return
				}
			}
		})
	}
	writer.Go(func() {
		for i := range 2000 {
			commit(t, d, epoch, put("/r/x/a", fmt.Sprint(i)), put("/r/x/b", fmt.Sprint(i)))
		}
	})
	writer.Wait()
	close(stop)
	d.Close()
	readers.Wait()
}

// TestReset: after a Reset the records are those given, readers of the time before get ErrCompacted, and none gets a bookmark that hides
// what was missed.
func TestReset(t *testing.T) {
	d := New(1, Options{})
	kept := commit(t, d, epoch, put("/r/x/a", "1")).Records[0]
	commit(t, d, epoch, put("/r/x/b", "1"))
	idle, err := d.Watch(t.Context(), "/r/x/", d.Revision())
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := idle.Next(t.Context())
		waiting <- err
	}()
	Reset(d, epoch, 9, []*store.Record{kept, {Key: "/r/x/c", Value: []byte("1"), Revision: 7, Created: 7}})
	if err := <-waiting; !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watcher of before ends with %v", err)
	}
	page, err := d.Range(t.Context(), store.Range{Prefix: "/r/x/"})
	if err != nil || page.Revision != 9 || len(page.Records) != 2 || page.Records[0] != kept || page.Records[1].Revision != 7 {
		t.Errorf("at %d: %v, %v", page.Revision, page.Records, err)
	}
	if _, err := d.Range(t.Context(), store.Range{Revision: 8}); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a read of before: %v", err)
	}
	if got := d.Size(); got.Keys != 2 || got.Bytes != 2*int64(len("/r/x/a1")) {
		t.Errorf("the size is %+v", got)
	}
	w, err := d.Watch(t.Context(), "/r/x/", 9)
	if err != nil {
		t.Fatal(err)
	}
	commit(t, d, epoch, put("/r/x/c", "2"))
	b, err := w.Next(t.Context())
	if err != nil || len(b.Events) != 1 || b.Events[0].Revision != 10 || b.Events[0].Previous == nil {
		t.Errorf("after it: %+v, %v", b, err)
	}
}
