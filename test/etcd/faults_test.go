// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd"
)

// TestFaults: clients of two engines write, read and watch while members are killed, the leader among them, and stopped. No acknowledged
// write is lost, no read is stale, and the watchers see each event once, in order.
func TestFaults(t *testing.T) {
	c := launch(t, 3).ready(t)
	defer c.remove()
	began := time.Now()
	h := newHistory()
	var engines []*etcd.Engine
	for range 2 {
		e := open(t, c)
		defer e.Close()
		engines = append(engines, e)
	}
	seen := make([][]store.Event, 2*len(engines))
	last := make(chan int64, len(seen))
	var watchers, clients sync.WaitGroup
	for i := range seen {
		watchers.Go(func() { seen[i] = watch(t, engines[i%2], 1, last) })
	}
	stop := make(chan struct{})
	for id := range 6 {
		clients.Go(func() { h.client(t, engines[id%2], id, began, stop) })
	}
	const some = 60 // writes, so that each fault meets some
	h.writes(t, some)
	step := func(name string, f func()) {
		before := time.Now()
		f()
		t.Logf("%s: %d ms", name, time.Since(before).Milliseconds())
	}
	leader := c.leader(t)
	step("a follower is killed", func() {
		c.kill((leader + 1) % 3)
		h.writes(t, some)
	})
	step("and comes back", func() {
		c.start(t, (leader+1)%3)
		h.writes(t, some)
	})
	c.ready(t)
	step("the leader is killed", func() {
		leader = c.leader(t)
		c.kill(leader)
		h.writes(t, some)
	})
	step("and comes back", func() {
		c.start(t, leader)
		h.writes(t, some)
	})
	step("the leader is stopped", func() {
		leader = c.leader(t)
		c.signal(t, leader, syscall.SIGSTOP)
		h.writes(t, some)
	})
	step("and goes on", func() {
		c.signal(t, leader, syscall.SIGCONT)
		h.writes(t, some)
	})
	step("a majority is killed and comes back", func() {
		c.kill(0)
		c.kill(1)
		c.start(t, 0)
		c.start(t, 1)
		h.writes(t, some)
	})
	close(stop)
	clients.Wait()
	r, err := store.New(engines[0]).Update(t.Context(), "/registry/end", store.Any, []byte("end"), 0)
	must(t, err)
	for range seen {
		last <- r.Revision
	}
	watchers.Wait()
	if !t.Failed() {
		h.judge(t, seen)
	}
}

// TestLostWithTheLeader: a transaction that a member has passed on to a leader that answers no more is sent again to the next leader,
// within a second of the election. etcd does not tell the client that it is lost.
func TestLostWithTheLeader(t *testing.T) {
	c := launch(t, 3).ready(t)
	defer c.remove()
	leader := c.leader(t)
	follower := (leader + 1) % 3
	e, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{c.urls[follower]}})
	must(t, err)
	defer e.Close()
	client := c.client(t)
	defer client.Close()
	old, err := client.Status(t.Context(), c.urls[follower])
	must(t, err)
	c.signal(t, leader, syscall.SIGSTOP)
	stopped := time.Now()
	var written time.Duration
	var writing sync.WaitGroup
	writing.Go(func() {
		_, err := store.New(e).Create(t.Context(), "/registry/a", []byte("1"), 0)
		written = time.Since(stopped)
		if err != nil {
			t.Error(err)
		}
	})
	for now := old; now.Leader == old.Leader || now.Leader == 0; {
		now, err = client.Status(t.Context(), c.urls[follower])
		must(t, err)
	}
	elected := time.Since(stopped)
	writing.Wait()
	t.Logf("the next leader is there after %v, the transaction after %v", elected, written)
	if written > elected+time.Second {
		t.Errorf("the transaction waited for %v after the election", written-elected)
	}
}

// TestCompactedBehind: an engine whose missed changes etcd has compacted reads everything again; its watchers are told so.
func TestCompactedBehind(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	client := c.client(t)
	defer client.Close()
	// The engine reaches etcd through a relay that can be cut.
	cut := newRelay(t, c.urls[0])
	e, err := etcd.Open(t.Context(), etcd.Options{Servers: []string{cut.url()}})
	must(t, err)
	defer e.Close()
	s := store.New(e)
	kept, err := s.Create(t.Context(), "/registry/a", []byte("1"), 0)
	must(t, err)
	_, err = s.Create(t.Context(), "/registry/b", []byte("1"), 0)
	must(t, err)
	w, err := s.Watch(t.Context(), "/registry/", s.Revision())
	must(t, err)
	defer w.Close()
	cut.block()
	if err := e.Probe(short(t)); err == nil {
		t.Error("the probe of an engine without etcd succeeds")
	}
	var revision int64
	for i := range 10 {
		put, err := client.Put(t.Context(), fmt.Sprintf("/registry/new/%d", i), "x")
		must(t, err)
		revision = put.Header.Revision
	}
	_, err = client.Delete(t.Context(), "/registry/b")
	must(t, err)
	_, err = client.Compact(t.Context(), revision, clientv3.WithCompactPhysical())
	must(t, err)
	// A read that begins now is late, and not stale.
	page := make(chan store.Page, 1)
	go func() {
		p, err := s.List(t.Context(), "/registry/")
		if err != nil {
			t.Error(err)
		}
		page <- p
	}()
	cut.unblock()
	p := <-page
	if len(p.Records) != 11 || p.Revision < revision || p.Records[0] != kept {
		t.Errorf("%d records at %d, the first is %+v", len(p.Records), p.Revision, p.Records[0])
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watcher that has missed events gets %v", err)
	}
	if err := e.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := s.Update(t.Context(), "/registry/a", kept.Revision, []byte("2"), 0); err != nil {
		t.Error(err)
	}
}

// TestOpenWithLongHistory: an engine opens with the last 10,000 revisions of etcd's history, which come in about a second. Watches go on
// from any of these, and those from before are told to list again. etcd takes half a minute for 100,000.
func TestOpenWithLongHistory(t *testing.T) {
	const history, objects = 10_000, 100
	c := launch(t, 1).ready(t)
	defer c.remove()
	client := c.client(t)
	defer client.Close()
	var writing sync.WaitGroup
	for i := range objects {
		writing.Go(func() {
			for n := range 2 * history / objects {
				if _, err := client.Put(t.Context(), fmt.Sprint("/registry/a/", i), fmt.Sprint(n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	began := time.Now()
	e := open(t, c)
	defer e.Close()
	t.Logf("opened after %v", time.Since(began))
	first := e.Revision() - history
	if e.Compacted() != first {
		t.Errorf("history begins at revision %d, want %d", e.Compacted(), first)
	}
	w, err := e.Watch(t.Context(), "/registry/", first)
	must(t, err)
	defer w.Close()
	for next := first + 1; next <= e.Revision(); {
		b, err := w.Next(t.Context())
		must(t, err)
		for _, event := range b.Events {
			if event.Revision != next || event.Previous == nil {
				t.Fatalf("got revision %d with %v before it, want %d", event.Revision, event.Previous, next)
			}
			next++
		}
	}
	late, err := e.Watch(t.Context(), "/registry/", first-1)
	if err == nil {
		_, err = late.Next(t.Context())
		late.Close()
	}
	if !errors.Is(err, store.ErrCompacted) {
		t.Errorf("a watch from before the history: %v", err)
	}
}

// short is a context for what must fail soon.
func short(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// TestNoSpace: an etcd whose quota is full refuses writes with ErrNoSpace, and serves reads and deletes.
func TestNoSpace(t *testing.T) {
	c := launch(t, 1, "--quota-backend-bytes", fmt.Sprint(4<<20)).ready(t)
	defer c.remove()
	e := open(t, c)
	defer e.Close()
	s := store.New(e)
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		_, err = s.Create(t.Context(), fmt.Sprintf("/registry/a/%d", n), make([]byte, 500<<10), 0)
	}
	if !errors.Is(err, store.ErrNoSpace) {
		t.Fatalf("after %d writes: %v", n, err)
	}
	page, err := s.List(t.Context(), "/registry/")
	if err != nil || len(page.Records) != n-1 {
		t.Errorf("%d records of %d, %v", len(page.Records), n-1, err)
	}
	if _, err := s.Delete(t.Context(), "/registry/a/0", page.Records[0].Revision); err != nil {
		t.Error(err)
	}
	if _, err := s.Create(t.Context(), "/registry/lease", []byte("x"), time.Minute); !errors.Is(err, store.ErrNoSpace) {
		t.Errorf("a key that expires: %v", err)
	}
	if _, err := s.Create(t.Context(), "/registry/large", make([]byte, 3<<20), 0); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("a value beyond etcd's limit: %v", err)
	}
}

// TestExpiry: keys with a time to live are deleted by etcd, and a later write without one keeps its key.
func TestExpiry(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	e := open(t, c)
	defer e.Close()
	s := store.New(e)
	for _, key := range []string{"/registry/a", "/registry/b", "/registry/c"} {
		_, err := s.Create(t.Context(), key, []byte("x"), time.Second)
		must(t, err)
	}
	_, err := s.Update(t.Context(), "/registry/c", store.Any, []byte("y"), 0)
	must(t, err)
	w, err := s.Watch(t.Context(), "/registry/", s.Revision())
	must(t, err)
	defer w.Close()
	deleted := map[string]bool{}
	for len(deleted) < 2 {
		b, err := w.Next(t.Context())
		must(t, err)
		for _, event := range b.Events {
			if event.Record != nil || event.Previous == nil {
				t.Errorf("%+v", event)
			}
			deleted[event.Key] = true
		}
	}
	if r, _, err := s.Get(t.Context(), "/registry/c"); r == nil || err != nil || deleted["/registry/c"] {
		t.Errorf("the key without a time to live: %v, %v", r, err)
	}
}

// TestPrefix: engines with prefixes share an etcd, see only their own keys, and know revisions that others made.
func TestPrefix(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	var stores []*store.Store
	for _, prefix := range []string{"/registry", "/other"} {
		e, err := etcd.Open(t.Context(), etcd.Options{Servers: c.urls, Prefix: prefix})
		must(t, err)
		defer e.Close()
		stores = append(stores, store.New(e))
	}
	a, err := stores[0].Create(t.Context(), "/registry/a", []byte("1"), 0)
	must(t, err)
	page, err := stores[1].List(t.Context(), "/registry/") // the revision changed none of its keys
	if err != nil || len(page.Records) != 0 || page.Revision < a.Revision {
		t.Errorf("the other prefix: %v at %d, %v", page.Records, page.Revision, err)
	}
	_, err = stores[1].Create(t.Context(), "/registry/b", []byte("1"), 0)
	must(t, err)
	client := c.client(t)
	defer client.Close()
	got, err := client.Get(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	if len(got.Kvs) != 2 || string(got.Kvs[0].Key) != "/other/b" || string(got.Kvs[1].Key) != "/registry/a" {
		t.Errorf("etcd has %v", got.Kvs)
	}
	if _, err := stores[0].Create(t.Context(), "/elsewhere", []byte("1"), 0); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a key of no prefix: %v", err)
	}
}

// TestCompactShared: of two engines, and kube-apiserver's protocol, one compacts in an interval, and only what is an interval old.
func TestCompactShared(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	a, b := open(t, c), open(t, c)
	defer a.Close()
	defer b.Close()
	round := func(e *etcd.Engine) {
		t.Helper()
		must(t, e.CompactShared(t.Context()))
	}
	write := func() int64 {
		t.Helper()
		r, err := store.New(a).Update(t.Context(), "/registry/a", store.Any, []byte("x"), 0)
		must(t, err)
		return r.Revision
	}
	write()
	round(a) // begins
	round(b) // learns of it
	old := write()
	// Both have seen the write, so that neither watches from a revision that is compacted: such a mirror reads everything anew.
	for _, e := range []*etcd.Engine{a, b} {
		if page, err := store.New(e).List(t.Context(), "/registry/"); err != nil || page.Revision < old {
			t.Fatalf("listed at revision %d, want %d at least: %v", page.Revision, old, err)
		}
	}
	if a.Compacted() != 1 || b.Compacted() != 1 {
		t.Fatalf("compacted to %d and %d in the first interval", a.Compacted(), b.Compacted())
	}
	round(a)
	compacted := a.Compacted()
	if compacted <= 1 || compacted >= old {
		t.Errorf("a compacts to %d, want before %d", compacted, old)
	}
	round(b)
	if b.Compacted() != compacted {
		t.Errorf("b compacts to %d, a has compacted to %d", b.Compacted(), compacted)
	}
	client := c.client(t)
	defer client.Close()
	if _, err := client.Get(t.Context(), "/", clientv3.WithRev(compacted-1)); err == nil {
		t.Error("etcd still has what was compacted")
	}
	if _, err := client.Get(t.Context(), "/", clientv3.WithRev(compacted)); err != nil {
		t.Error(err)
	}
}
