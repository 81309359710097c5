// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/store"
)

func testGet(t *testing.T, f *fixture) {
	if got := f.Revision(); got != 1 {
		t.Errorf("a new store is at revision %d, want 1", got)
	}
	r, revision, err := f.Get(f.ctx, "/a")
	if r != nil || revision != 1 || err != nil {
		t.Fatalf("absent key: %s, %d, %v", show(r), revision, err)
	}
	a := f.create(t, "/a", "1")
	f.create(t, "/b", "2")
	r, revision, err = f.Get(f.ctx, "/a")
	if show(r) != show(a) || revision != 3 || err != nil {
		t.Errorf("got %s, %d, %v", show(r), revision, err)
	}
	empty := must[*store.Record](t)(f.Create(f.ctx, "/empty", []byte{}, 0))
	if r, _, _ := f.Get(f.ctx, "/empty"); show(r) != show(empty) || r.Value == nil {
		t.Errorf("an empty value is %s", show(r))
	}
}

func testCreate(t *testing.T, f *fixture) {
	a := f.create(t, "/a", "1")
	if show(a) != `/a="1"@2/2` {
		t.Errorf("created %s", show(a))
	}
	_, err := f.Create(f.ctx, "/a", []byte("2"), 0)
	wantConflict(t, err, "/a", a)
	if f.Revision() != 2 {
		t.Errorf("a conflict made revision %d", f.Revision())
	}
}

func testUpdate(t *testing.T, f *fixture) {
	a := f.create(t, "/a", "1")
	b := f.update(t, a, "2")
	if show(b) != `/a="2"@3/2` {
		t.Errorf("updated to %s", show(b))
	}
	_, err := f.Update(f.ctx, "/a", a.Revision, []byte("3"), 0)
	wantConflict(t, err, "/a", b)
	_, err = f.Update(f.ctx, "/b", 2, []byte("3"), 0)
	wantConflict(t, err, "/b", nil)
	c := must[*store.Record](t)(f.Update(f.ctx, "/a", store.Any, []byte("4"), 0))
	d := must[*store.Record](t)(f.Update(f.ctx, "/d", store.Any, []byte("5"), 0))
	if got := show(c) + " " + show(d); got != `/a="4"@4/2 /d="5"@5/5` {
		t.Errorf("updated to %s", got)
	}
	if show(a) != `/a="1"@2/2` {
		t.Errorf("the first record has changed to %s", show(a))
	}
}

func testDelete(t *testing.T, f *fixture) {
	a := f.create(t, "/a", "1")
	_, err := f.Delete(f.ctx, "/a", a.Revision+1)
	wantConflict(t, err, "/a", a)
	if got := must[int64](t)(f.Delete(f.ctx, "/a", a.Revision)); got != 3 {
		t.Errorf("deleted at %d, want 3", got)
	}
	if r, _, _ := f.Get(f.ctx, "/a"); r != nil {
		t.Errorf("deleted, but there is %s", show(r))
	}
	_, err = f.Delete(f.ctx, "/a", a.Revision)
	wantConflict(t, err, "/a", nil)
	if got := must[int64](t)(f.Delete(f.ctx, "/a", store.Any)); got != 3 || f.Revision() != 3 {
		t.Errorf("deleting an absent key made revision %d", got)
	}
	if again := f.create(t, "/a", "2"); show(again) != `/a="2"@4/4` {
		t.Errorf("created again as %s", show(again))
	}
}

func testTransaction(t *testing.T, f *fixture) {
	a := f.create(t, "/a", "1")
	revision, records, err := f.Commit(f.ctx,
		store.Op{Key: "/a", Expect: a.Revision},
		store.Op{Key: "/b", Value: []byte("2")},
		store.Op{Key: "/absent", Expect: store.Any},
		store.Op{Key: "/c", Value: []byte("3"), Expect: store.Any})
	if err != nil || revision != 3 || showAll(records) != "none\n/b=\"2\"@3/3\nnone\n/c=\"3\"@3/3\n" {
		t.Fatalf("%d %v\n%s", revision, err, showAll(records))
	}
	// If one condition fails, nothing happens.
	_, _, err = f.Commit(f.ctx,
		store.Op{Key: "/a", Value: []byte("4")},
		store.Op{Key: "/b", Value: []byte("5")})
	wantConflict(t, err, "/b", records[1])
	page := must[store.Page](t)(f.List(f.ctx, "/"))
	if got, want := showAll(page.Records), "/b=\"2\"@3/3\n/c=\"3\"@3/3\n"; got != want || page.Revision != 3 {
		t.Errorf("at %d:\n%s", page.Revision, cmp.Diff(want, got))
	}
	if revision, _, err := f.Commit(f.ctx); revision != 3 || err != nil {
		t.Errorf("no ops: %d, %v", revision, err)
	}
}

func testInvalid(t *testing.T, f *fixture) {
	v := []byte("1")
	for name, ops := range map[string][]store.Op{
		"empty key":         {{Value: v}},
		"key twice":         {{Key: "/a", Value: v}, {Key: "/b", Value: v}, {Key: "/a", Value: v}},
		"negative ttl":      {{Key: "/a", Value: v, TTL: -1}},
		"ttl of a delete":   {{Key: "/a", Expect: store.Any, TTL: time.Second}},
		"negative revision": {{Key: "/a", Value: v, Expect: -2}},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := f.Commit(f.ctx, ops...)
			wantError(t, err, store.ErrInvalid)
		})
	}
	many := make([]store.Op, 40)
	for i := range many {
		many[i] = store.Op{Key: fmt.Sprintf("/%d", i%39), Value: v}
	}
	_, _, err := f.Commit(f.ctx, many...)
	wantError(t, err, store.ErrInvalid)
	_, err = f.Range(f.ctx, store.Range{Limit: -1})
	wantError(t, err, store.ErrInvalid)
	if f.Revision() != 1 {
		t.Errorf("invalid ops made revision %d", f.Revision())
	}
}

func testRange(t *testing.T, f *fixture) {
	for _, key := range []string{"/r/b/2", "/r/a/1", "/r/b/1", "/r/b", "/r/b/3", "/r/b\xff", "/r/c/1", "\xff\xff/1"} {
		f.create(t, key, "")
	}
	for _, test := range []struct {
		r         store.Range
		want      string
		remaining int64
	}{
		{store.Range{Prefix: "/r/b/"}, "/r/b/1 /r/b/2 /r/b/3", 0},
		{store.Range{Prefix: "/r/b"}, "/r/b /r/b/1 /r/b/2 /r/b/3 /r/b\xff", 0},
		{store.Range{Prefix: "/r/b/", Limit: 2}, "/r/b/1 /r/b/2", 1},
		{store.Range{Prefix: "/r/b/", Limit: 2, After: "/r/b/2"}, "/r/b/3", 0},
		{store.Range{Prefix: "/r/b/", After: "/r/b/10"}, "/r/b/2 /r/b/3", 0},
		{store.Range{Prefix: "/r/b/", After: "/a"}, "/r/b/1 /r/b/2 /r/b/3", 0},
		{store.Range{Prefix: "/r/b/", After: "/r/c"}, "", 0},
		{store.Range{Prefix: "/r/b/", Limit: 3}, "/r/b/1 /r/b/2 /r/b/3", 0},
		{store.Range{Prefix: "/none/"}, "", 0},
		{store.Range{Prefix: "\xff"}, "\xff\xff/1", 0},
		{store.Range{Limit: 1}, "/r/a/1", 7},
	} {
		for _, revision := range []int64{0, f.Revision()} {
			test.r.Revision = revision
			page := must[store.Page](t)(f.Range(f.ctx, test.r))
			var keys []string
			for _, r := range page.Records {
				keys = append(keys, r.Key)
			}
			if got := strings.Join(keys, " "); got != test.want || page.Remaining != test.remaining || page.Revision != f.Revision() {
				t.Errorf("%+v: %q, %d remain, at %d", test.r, got, page.Remaining, page.Revision)
			}
		}
	}
	_, err := f.Range(f.ctx, store.Range{Revision: f.Revision() + 1})
	wantError(t, err, store.ErrFuture)
}

func testRangePast(t *testing.T, f *fixture) {
	a := f.create(t, "/r/x/a", "1")              // 2
	f.create(t, "/r/x/b", "1")                   // 3
	f.update(t, a, "2")                          // 4
	f.create(t, "/r/y/c", "1")                   // 5
	must[int64](t)(f.Delete(f.ctx, "/r/x/b", 3)) // 6
	f.create(t, "/r/x/d", "1")                   // 7
	want := map[int64]string{
		1: "",
		2: "/r/x/a=\"1\"@2/2\n",
		3: "/r/x/a=\"1\"@2/2\n/r/x/b=\"1\"@3/3\n",
		5: "/r/x/a=\"2\"@4/2\n/r/x/b=\"1\"@3/3\n",
		6: "/r/x/a=\"2\"@4/2\n",
		7: "/r/x/a=\"2\"@4/2\n/r/x/d=\"1\"@7/7\n",
	}
	for revision, want := range want {
		page := must[store.Page](t)(f.Range(f.ctx, store.Range{Prefix: "/r/x/", Revision: revision}))
		if got := showAll(page.Records); got != want || page.Revision != revision {
			t.Errorf("revision %d, answered as of %d: %s", revision, page.Revision, cmp.Diff(want, got))
		}
	}
	page := must[store.Page](t)(f.Range(f.ctx, store.Range{Prefix: "/r/", Revision: 5, Limit: 1, After: "/r/x/a"}))
	if got := showAll(page.Records); got != "/r/x/b=\"1\"@3/3\n" || page.Remaining != 1 {
		t.Errorf("page: %s, %d remain", got, page.Remaining)
	}
}

func testClose(t *testing.T, f *fixture) {
	f.create(t, "/a", "1")
	w := f.watch(t, "/", 2)
	ended := make(chan error, 1)
	go func() {
		_, err := w.Next(f.ctx)
		ended <- err
	}()
	closed := f.watch(t, "/", 1)
	next(t, closed)
	closed.Close()
	_, err := closed.Next(f.ctx)
	wantError(t, err, store.ErrClosed)

	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	wantError(t, <-ended, store.ErrClosed)
	_, err = f.Create(f.ctx, "/b", nil, 0)
	wantError(t, err, store.ErrClosed)
	_, _, err = f.Get(f.ctx, "/a")
	wantError(t, err, store.ErrClosed)
	_, err = f.List(f.ctx, "/")
	wantError(t, err, store.ErrClosed)
	_, err = f.Watch(f.ctx, "/", 1)
	wantError(t, err, store.ErrClosed)
	wantError(t, f.Compact(f.ctx, 1+1), store.ErrClosed)
	if err := f.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

func testContext(t *testing.T, f *fixture) {
	f.create(t, "/a", "1")
	ctx, cancel := context.WithCancel(f.ctx)
	w := must[store.Watcher](t)(f.Watch(ctx, "/", f.Revision()))
	defer w.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := w.Next(ctx)
		ended <- err
	}()
	cancel()
	wantError(t, <-ended, context.Canceled)
	_, err := f.Create(ctx, "/b", nil, 0)
	wantError(t, err, context.Canceled)
	_, _, err = f.Get(ctx, "/a")
	wantError(t, err, context.Canceled)
	_, err = f.List(ctx, "/")
	wantError(t, err, context.Canceled)
	if r := f.create(t, "/b", "2"); next(t, w).Events[0].Record != r {
		t.Error("a watcher whose Next was cancelled does not go on")
	}
	_, err = f.Watch(f.ctx, "/", math.MaxInt64)
	wantError(t, err, store.ErrFuture)
}
