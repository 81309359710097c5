// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
	"github.com/mortise-dev/mortise/store/storetest"
)

// The conformance suite of the engine runs in test/etcd, against three members.

// TestQuestionShared: readers share a question that is asked after they began, and none gets an answer from before.
func TestQuestionShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan chan int64)
		q := newQuestion(func(context.Context) (int64, error) {
			c := make(chan int64)
			asked <- c
			return <-c, nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { q.run(ctx) })
		read := func(want int64, n int) *sync.WaitGroup {
			var readers sync.WaitGroup
			for range n {
				readers.Go(func() {
					if got, err := q.current(t.Context()); got != want || err != nil {
						t.Errorf("the answer is %d, %v, want %d", got, err, want)
					}
				})
			}
			synctest.Wait()
			return &readers
		}
		first := read(1, 1)
		answer := <-asked
		later := read(2, 100)
		answer <- 1
		first.Wait()
		answer = <-asked
		answer <- 2
		later.Wait()
		cancel()
		run.Wait()
		if _, err := q.current(t.Context()); !errors.Is(err, store.ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestQuestionInsists: a question that fails is asked again; one that can never succeed is not.
func TestQuestionInsists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var errs []error
		q := newQuestion(func(context.Context) (int64, error) {
			if len(errs) == 0 {
				return 7, nil
			}
			err := errs[0]
			errs = errs[1:]
			return 0, err
		})
		go q.run(ctx)
		errs = []error{context.DeadlineExceeded, errors.New("connection refused")}
		if got, err := q.current(ctx); got != 7 || err != nil {
			t.Errorf("%d, %v", got, err)
		}
		errs = []error{store.ErrCorrupt}
		if _, err := q.current(ctx); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%v", err)
		}
		cancel()
		synctest.Wait()
	})
}

// TestLeases: keys that expire at nearly the same time share a lease, which outlives each of them by a twentieth at most.
func TestLeases(t *testing.T) {
	clock := storetest.NewClock()
	var granted []int64
	l := &leases{clock: clock, grant: func(_ context.Context, seconds int64) (*clientv3.LeaseGrantResponse, error) {
		granted = append(granted, seconds)
		return &clientv3.LeaseGrantResponse{ID: clientv3.LeaseID(len(granted)), TTL: seconds}, nil
	}}
	get := func(ttl time.Duration, want clientv3.LeaseID) {
		t.Helper()
		if got, err := l.get(t.Context(), ttl); got != want || err != nil {
			t.Errorf("%v: lease %d, %v, want %d", ttl, got, err, want)
		}
	}
	get(time.Hour, 1) // an event's
	get(time.Hour, 1)
	get(15*time.Second, 2) // a master lease's
	clock.Advance(time.Minute)
	get(time.Hour, 1)
	clock.Advance(time.Second)
	get(time.Hour, 3)
	for range sharedKeys - 1 {
		get(time.Hour, 3)
	}
	get(time.Hour, 4)
	get(1500*time.Millisecond, 5)
	// The clock is set back by a day: what remains of a lease is not known, so that none is shared.
	clock.Advance(-24 * time.Hour)
	get(time.Hour, 6)
	get(time.Hour, 6)
	if want := []int64{3660, 15, 3660, 3660, 2, 3660}; !slices.Equal(granted, want) {
		t.Errorf("granted %v s, want %v", granted, want)
	}
}

// TestOvertaking: a transaction without an answer counts as lost when one that was sent half a second later is answered, and not before.
func TestOvertaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o overtaking
		waiting, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, stop := o.watch(waiting, cancel, func() {})
		defer stop()
		answer := func() { // to a transaction that is sent now
			ctx, cancel := context.WithCancel(t.Context())
			answered, _ := o.watch(ctx, cancel, func() {})
			answered()
			cancel()
		}
		lost := func(want bool) {
			t.Helper()
			synctest.Wait()
			if got := waiting.Err() != nil; got != want {
				t.Errorf("lost %v, want %v", got, want)
			}
		}
		answer()
		time.Sleep(10 * time.Second)
		lost(false) // etcd answers none: it has no majority, or its disk is slow
		answer()
		time.Sleep(overtakenTime - time.Millisecond)
		lost(false)
		time.Sleep(time.Millisecond)
		lost(true)
	})
}

// TestElections: a transaction counts as lost when a question that was asked after it is answered by a leader of a newer term.
func TestElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term, asked := uint64(1), 0
		e := &elections{}
		e.ask = func(context.Context) (int64, error) {
			asked++
			e.saw(term)
			return 0, nil
		}
		e.saw(term)
		waiting, cancel := context.WithCancel(t.Context())
		defer cancel()
		doubt := e.doubt(waiting, cancel)
		e.saw(0) // of a late answer
		doubt()
		time.Sleep(10 * time.Second) // etcd's disk is slow, and its leader lives
		synctest.Wait()
		if waiting.Err() != nil || asked < 10 {
			t.Errorf("lost after %d questions, which the same leader answered", asked)
		}
		term++
		doubt()
		time.Sleep(overtakenTime + lateTime)
		synctest.Wait()
		if waiting.Err() == nil {
			t.Error("another leader answers, and the transaction still waits")
		}
		before := asked
		time.Sleep(10 * time.Second)
		if asked != before {
			t.Error("it asks on")
		}
		// The transaction is answered meanwhile.
		waiting, cancel = context.WithCancel(t.Context())
		doubt = e.doubt(waiting, func() { t.Error("a transaction that has been answered counts as lost") })
		term++
		doubt()
		synctest.Wait()
		cancel()
		time.Sleep(time.Second)
	})
}

// TestClock: the times of leases are differences of a clock that is not set. A machine whose clock jumps shares leases as before.
func TestClock(t *testing.T) {
	if now := (alarm.System{}).Now(); !strings.Contains(now.String(), "m=+") {
		t.Errorf("%v has no reading of the monotonic clock", now)
	}
}

// TestKeyspace: the prefix stands in the place of /registry, and only keys below it are written.
func TestKeyspace(t *testing.T) {
	for _, test := range []struct{ prefix, key, want string }{
		{"", "/anything", "/anything"},
		{"/registry", "/registry/pods/a/b", "/registry/pods/a/b"},
		{"registry/", "/registry/pods/a/b", "/registry/pods/a/b"},
		{"/kubernetes.io", "/registry/pods/a/b", "/kubernetes.io/pods/a/b"},
	} {
		k := keyspace.New(test.prefix)
		got, ok := k.Outer(test.key)
		if !ok || got != test.want || k.Inner([]byte(got)) != test.key {
			t.Errorf("%q: %s becomes %s, %v, and back %s", test.prefix, test.key, got, ok, k.Inner([]byte(got)))
		}
		if _, ok := k.Outer("/other"); ok != (test.prefix == "") {
			t.Errorf("%q: a key of others is written: %v", test.prefix, ok)
		}
	}
}

// TestWrites: a commit finds the records that it made, whose bytes the mirror shares, and only its own.
func TestWrites(t *testing.T) {
	var w writes
	m := &mirror{}
	value := []byte("1")
	var made *store.Record
	mine := w.begin([]store.Op{{Key: "/a", Value: value, Made: func(r *store.Record) { made = r }}, {Key: "/b"}})
	event := func(key, value string, revision int64) *mvccpb.Event {
		e := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), ModRevision: revision, CreateRevision: 2}}
		if value == "" {
			e.Type = mvccpb.Event_DELETE
		}
		return e
	}
	w.events(m, []*mvccpb.Event{event("/a", "2", 3), event("/c", "1", 3)})
	if w.together(mine) != 0 || made != nil {
		t.Error("another's change counts as the commit's")
	}
	events := w.events(m, []*mvccpb.Event{event("/a", "1", 4), event("/b", "", 4)})
	if w.together(mine) != 4 || made != events[0].Record || w.made(mine[0], 4) != made || &made.Value[0] != &value[0] || made.Created != 2 {
		t.Errorf("the commit's own change is not found: %d, %v", w.together(mine), made)
	}
	w.end(mine)
	if len(w.by) != 0 {
		t.Errorf("left are %v", w.by)
	}
}

// TestLoadTLS: wrong files are refused with their names.
func TestLoadTLS(t *testing.T) {
	if c, err := LoadTLS("", "", ""); c != nil || err != nil {
		t.Errorf("no files: %v, %v", c, err)
	}
	for _, files := range [][3]string{
		{"absent", "", ""}, {"etcd_test.go", "", ""}, {"", "cert", ""}, {"", "", "key"}, {"", "absent", "absent"},
	} {
		if _, err := LoadTLS(files[0], files[1], files[2]); err == nil {
			t.Errorf("%v: no error", files)
		}
	}
	for _, servers := range [][]string{nil, {"127.0.0.1:2379"}, {"http://a:1", "unix:///x"}, {"http://"}} {
		if CheckServers(servers) == nil {
			t.Errorf("servers %q: no error", servers)
		}
	}
}
