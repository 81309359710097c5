// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/store"
)

func testDurable(t *testing.T, f *fixture) {
	for round := range 3 {
		var wg sync.WaitGroup
		for writer := range 8 {
			wg.Go(func() {
				for i := range 20 {
					key := fmt.Sprintf("/r/pods/%d/%d", writer, i%10)
					op := store.Op{Key: key, Expect: store.Any, Value: fmt.Append(nil, round, i)}
					if i%7 == 6 {
						op.Value = nil
					}
					if _, _, err := f.Commit(f.ctx, op); err != nil {
						t.Errorf("commit: %v", err)
					}
				}
			})
		}
		wg.Wait()
		want := must[store.Page](t)(f.List(f.ctx, ""))
		compacted := f.Compacted()
		f.reopen(t)
		have := must[store.Page](t)(f.List(f.ctx, ""))
		if diff := cmp.Diff(showAll(want.Records), showAll(have.Records)); diff != "" || want.Revision != have.Revision {
			t.Fatalf("durable: revision %d has become %d:\n%s", want.Revision, have.Revision, diff)
		}
		if f.Compacted() > compacted && f.Compacted() == f.Revision() {
			t.Errorf("durable: history is gone: compacted to %d, was %d", f.Compacted(), compacted)
		}
		if err := f.Compact(f.ctx, f.Revision()-5); err != nil {
			t.Fatal(err)
		}
		f.reopen(t)
		if f.Compacted() != have.Revision-5 {
			t.Errorf("durable: compacted to %d, want %d", f.Compacted(), have.Revision-5)
		}
	}
}

// expired waits until the keys are deleted, and returns the revision.
func (f *fixture) expired(t *testing.T, w store.Watcher, keys ...string) {
	t.Helper()
	left := map[string]bool{}
	for _, key := range keys {
		left[key] = true
	}
	for len(left) > 0 {
		for _, e := range next(t, w).Events {
			if e.Record != nil || !left[e.Key] {
				t.Fatalf("expiry: unexpected change %v", changeOf(e))
			}
			delete(left, e.Key)
			if r, _, _ := f.Get(f.ctx, e.Key); r != nil {
				t.Errorf("expiry: %s is still there", show(r))
			}
		}
	}
}

func testExpiry(t *testing.T, f *fixture) {
	put := func(key string, ttl time.Duration) *store.Record {
		t.Helper()
		return must[*store.Record](t)(f.Update(f.ctx, key, store.Any, []byte("x"), ttl))
	}
	a := put("/a", time.Minute)
	if want := f.clock.Now().Add(time.Minute); !a.Expires.Equal(want) {
		t.Errorf("expires %v, want %v", a.Expires, want)
	}
	put("/b", 2*time.Minute)
	put("/c", time.Hour)
	put("/d", time.Minute)
	put("/d", 0) // an update without a ttl ends the earlier one
	put("/e", time.Minute)
	put("/e", time.Hour)
	put("/f", time.Minute)
	must[int64](t)(f.Delete(f.ctx, "/f", store.Any))
	put("/g", 0)
	w := f.watch(t, "", f.Revision())

	f.clock.Advance(59 * time.Second)
	if r, _, _ := f.Get(f.ctx, "/a"); r == nil {
		t.Fatal("expiry: too early")
	}
	f.clock.Advance(time.Second)
	f.expired(t, w, "/a")
	f.clock.Advance(2 * time.Minute)
	f.expired(t, w, "/b")
	f.clock.Advance(time.Hour)
	f.expired(t, w, "/c", "/e")
	// A key that is written later but expires sooner moves the alarm.
	put("/h", time.Hour)
	put("/i", time.Second)
	next(t, w)
	page := must[store.Page](t)(f.List(f.ctx, ""))
	w = f.watch(t, "", page.Revision)
	f.clock.Advance(time.Second)
	f.expired(t, w, "/i")
	page = must[store.Page](t)(f.List(f.ctx, ""))
	var keys string
	for _, r := range page.Records {
		keys += r.Key
	}
	if keys != "/d/g/h" {
		t.Errorf("expiry: left are %s", keys)
	}
	// Many keys at once.
	var many []string
	for i := range 600 {
		many = append(many, fmt.Sprintf("/many/%d", i))
		put(many[i], time.Second)
	}
	w = f.watch(t, "", f.Revision())
	f.clock.Advance(time.Second)
	f.expired(t, w, many...)
}

func testExpiryAfterRestart(t *testing.T, f *fixture) {
	a := must[*store.Record](t)(f.Create(f.ctx, "/a", []byte("x"), time.Minute))
	must[*store.Record](t)(f.Create(f.ctx, "/b", []byte("x"), time.Hour))
	f.reopen(t)
	if r, _, _ := f.Get(f.ctx, "/a"); r == nil || !r.Expires.Equal(a.Expires) {
		t.Fatalf("expiry: after a restart %s", show(r))
	}
	w := f.watch(t, "", f.Revision())
	f.clock.Advance(time.Minute)
	f.expired(t, w, "/a")
	// A key that expires while the store is closed is deleted when it is opened.
	revision := f.Revision()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f.clock.Advance(time.Hour)
	f.reopen(t)
	w = f.watch(t, "", revision)
	f.expired(t, w, "/b")
}
