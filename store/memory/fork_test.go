// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/storetest"
)

// TestForkIsAnEngine: a fork keeps the promises of an engine, too.
func TestForkIsAnEngine(t *testing.T) {
	storetest.Run(t, func(tb testing.TB, clock alarm.Clock) storetest.Open {
		return func() (store.Engine, error) {
			from := memory.Open(memory.Options{Clock: clock})
			tb.Cleanup(func() { from.Close() })
			return from.Fork()
		}
	}, storetest.Features{Clock: true, Checks: 20})
}

// read returns the keys and values at a revision, 0 for the newest.
func read(t *testing.T, e store.Engine, revision int64) string {
	t.Helper()
	page, err := e.Range(t.Context(), store.Range{Prefix: "/", Revision: revision})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(page.Revision)
	for _, r := range page.Records {
		text += fmt.Sprintf(" %s=%s@%d", r.Key, r.Value, r.Revision)
	}
	return text
}

// TestForksAreIndependent writes at random to an engine and its forks, forks of forks among them, and reads each at each revision: what it
// was then, whatever the others wrote since.
func TestForksAreIndependent(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	engines := []store.Engine{memory.Open(memory.Options{})}
	was := []map[int64]string{{}}
	write := func(i int) {
		op := store.Op{Key: fmt.Sprintf("/registry/kind%d/%d", random.IntN(4), random.IntN(40)), Expect: store.Any}
		if random.IntN(4) > 0 {
			op.Value = fmt.Appendf(nil, "%d.%d", i, random.IntN(1000))
		}
		if _, _, err := engines[i].Commit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		was[i][engines[i].Revision()] = read(t, engines[i], 0)
	}
	for n := range 1500 {
		if n%200 == 0 {
			from := random.IntN(len(engines))
			fork, err := engines[from].(store.Forker).Fork()
			if err != nil {
				t.Fatal(err)
			}
			engines = append(engines, fork)
			same := map[int64]string{}
			for revision, text := range was[from] {
				same[revision] = text
			}
			was = append(was, same)
		}
		write(random.IntN(len(engines)))
	}
	for i, e := range engines {
		for revision, want := range was[i] {
			if got := read(t, e, revision); got != want {
				t.Fatalf("engine %d at revision %d: %s, want %s", i, revision, got, want)
			}
		}
		w, err := e.Watch(t.Context(), "/registry/kind1/", 1)
		if err != nil {
			t.Fatal(err)
		}
		for last := int64(1); last < e.Revision(); {
			b, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			last = b.Revision
		}
		w.Close()
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestForkAt forks at each revision.
func TestForkAt(t *testing.T) {
	e := memory.Open(memory.Options{})
	defer e.Close()
	var was []string
	for i := range 50 {
		was = append(was, read(t, e, 0))
		op := store.Op{Key: fmt.Sprintf("/k/%d", i%7), Value: fmt.Append(nil, i), Expect: store.Any}
		if i%5 == 4 {
			op.Value = nil
		}
		if _, _, err := e.Commit(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range was {
		var revision int64
		fmt.Sscan(want, &revision)
		f, err := e.ForkAt(revision)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(t, f, 0); got != want {
			t.Errorf("at %d: %s, want %s", revision, got, want)
		}
		f.Close()
	}
	if _, err := e.ForkAt(e.Revision() + 1); !errors.Is(err, store.ErrFuture) {
		t.Errorf("in the future: %v", err)
	}
	if err := e.Compact(t.Context(), 20); err != nil {
		t.Fatal(err)
	}
	if _, err := e.ForkAt(10); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("compacted: %v", err)
	}
}

// TestRevisionAt: an engine and its forks tell the times of all revisions apart, also those of a forked one from before the fork.
func TestRevisionAt(t *testing.T) {
	clock := &standing{now: time.Unix(1e9, 0)}
	e := memory.Open(memory.Options{Clock: clock})
	defer e.Close()
	write := func(e store.Engine) {
		t.Helper()
		if _, _, err := e.Commit(t.Context(), store.Op{Key: "/k/1", Value: []byte("v"), Expect: store.Any}); err != nil {
			t.Fatal(err)
		}
	}
	type moment struct {
		at       time.Time
		revision int64
	}
	var all []moment
	for i := range 1000 {
		if i%3 > 0 { // two of three revisions share a time
			clock.now = clock.now.Add(time.Microsecond)
		}
		write(e)
		if n := len(all); n > 0 && all[n-1].at.Equal(clock.now) {
			all = all[:n-1]
		}
		all = append(all, moment{clock.now, e.Revision()})
	}
	f, err := e.Fork()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	clock.now = clock.now.Add(time.Microsecond)
	write(e)
	for _, history := range []store.History{e, f.(store.History)} {
		for _, m := range all {
			if got, err := history.RevisionAt(m.at); got != m.revision || err != nil {
				t.Fatalf("at %v: revision %d, want %d: %v", m.at, got, m.revision, err)
			}
		}
	}
	if got, _ := f.(store.History).RevisionAt(clock.now); got != all[len(all)-1].revision {
		t.Errorf("the fork is at %d now", got)
	}
	if _, err := e.RevisionAt(clock.now.Add(1)); !errors.Is(err, store.ErrFuture) {
		t.Errorf("in the future: %v", err)
	}
	if err := e.Compact(t.Context(), all[10].revision); err != nil {
		t.Fatal(err)
	}
	if _, err := e.RevisionAt(all[9].at); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("compacted: %v", err)
	}
	if got, err := e.RevisionAt(all[10].at); got != all[10].revision || err != nil {
		t.Errorf("at the beginning of the history: %d %v", got, err)
	}
}

// standing is a clock that a test moves. Its timers never fire.
type standing struct{ now time.Time }

func (s *standing) Now() time.Time                            { return s.now }
func (*standing) AfterFunc(time.Duration, func()) alarm.Timer { return never{} }

type never struct{}

func (never) Stop() bool { return true }

// BenchmarkFork forks an engine of 10,000 keys of 1 KB.
func BenchmarkFork(b *testing.B) {
	e := memory.Open(memory.Options{})
	defer e.Close()
	for i := range 10_000 {
		op := store.Op{Key: fmt.Sprintf("/registry/configmaps/default/%d", i), Value: make([]byte, 1024), Expect: store.Any}
		if _, _, err := e.Commit(context.Background(), op); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		f, err := e.Fork()
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

// TestForksWriteAtOnce writes to an engine and to its forks at the same time: under the race detector they touch nothing of each other.
func TestForksWriteAtOnce(t *testing.T) {
	const forks, writes = 4, 300 // more than a chunk of the history
	first := memory.Open(memory.Options{})
	defer first.Close()
	write := func(e store.Engine, key string) {
		if _, _, err := e.Commit(t.Context(), store.Op{Key: key, Value: []byte(key), Expect: store.Any}); err != nil {
			t.Error(err)
		}
	}
	for n := range 20 {
		write(first, fmt.Sprintf("/registry/a/%d", n))
	}
	engines := []store.Engine{first}
	for range forks {
		f, err := first.Fork()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		engines = append(engines, f)
	}
	var all sync.WaitGroup
	for i, e := range engines {
		all.Go(func() {
			for n := range writes {
				write(e, fmt.Sprintf("/registry/a/%d-%d", i, n))
			}
		})
	}
	all.Wait()
	for i, e := range engines {
		w, err := e.Watch(t.Context(), "/registry/a/", 1)
		if err != nil {
			t.Fatal(err)
		}
		var keys []string
		for len(keys) < 20+writes {
			batch, err := w.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, event := range batch.Events {
				keys = append(keys, event.Key)
			}
		}
		w.Close()
		if last := fmt.Sprintf("/registry/a/%d-%d", i, writes-1); len(keys) != 20+writes || keys[len(keys)-1] != last {
			t.Errorf("engine %d: %d changes, the last of %s", i, len(keys), keys[len(keys)-1])
		}
	}
}
