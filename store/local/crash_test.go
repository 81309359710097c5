// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/local/disk"
	"github.com/mortise-dev/mortise/store/mvcc"
	"github.com/mortise-dev/mortise/store/storetest"
)

var crashRuns = flag.Int("crash.runs", 4, "runs of the crash simulation")

// run is one life of a store on a disk that loses power at any moment. It remembers every revision that was begun, and
// which were acknowledged.
type run struct {
	seed   uint64
	random *rand.Rand
	fs     *disk.Mem
	engine *local.Engine

	mu        sync.Mutex
	states    map[int64]map[string]string // what each revision must hold, of those that were staged
	acked     int64                       // newest acknowledged revision
	compacted int64                       // newest acknowledged compaction
	asked     int64                       // newest compaction that was asked for
	crashes   []crash
}

// crash is what was found on the disk after a loss of power.
type crash struct {
	seed      uint64
	op        string
	fs        *disk.Mem
	acked     int64
	compacted int64
}

func crashOptions(fs *disk.Mem) local.Options {
	return local.Options{
		Disk: fs, Clock: storetest.NewClock(), SegmentBytes: 2 << 10,
		Options: mvcc.Options{HistoryRevisions: 40},
	}
}

// TestCrash has the power fail at every operation that the store does on its disk. After each, the store must open, hold
// all that was acknowledged and nothing that was not begun, and go on. -storetest.seed repeats a run.
func TestCrash(t *testing.T) {
	seed := rand.Uint64() >> 1
	if f, ok := flag.Lookup("storetest.seed").Value.(flag.Getter).Get().(uint64); ok && f != 0 {
		seed = f
	}
	total := 0
	for i := range *crashRuns {
		// The second life begins with what a crash in the first has left.
		first := &run{seed: seed + uint64(i), fs: disk.NewMem(), acked: 1, states: map[int64]map[string]string{1: {}}}
		first.live(t)
		second := first.reborn(t)
		second.live(t)
		for _, r := range []*run{first, second} {
			for _, c := range r.crashes {
				r.recover(t, c)
				if t.Failed() {
					t.Fatalf("run again with -storetest.seed=%d -crash.runs=1", first.seed)
				}
			}
			total += len(r.crashes)
		}
	}
	t.Logf("seed %d: %d crashes survived", seed, total)
}

// live does random commits, with the disk's hook taking a crash before each operation.
func (r *run) live(t *testing.T) {
	r.random = rand.New(rand.NewPCG(r.seed, 5))
	crashes := rand.New(rand.NewPCG(r.seed, 6))
	r.fs.Hook = func(op, name string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		s := crashes.Uint64()
		r.crashes = append(r.crashes, crash{s, op + " " + name, r.fs.Crash(s), r.acked, r.compacted})
		return nil
	}
	for range 2 {
		engine, err := local.Open("data", crashOptions(r.fs))
		if err != nil {
			t.Fatalf("seed %d: %v", r.seed, err)
		}
		r.engine = engine
		for range 60 {
			r.step(t)
		}
		if err := engine.Close(); err != nil {
			t.Fatalf("seed %d: %v", r.seed, err)
		}
	}
}

// reborn returns a run that begins with the disk of one of this run's crashes, preferably one amid a write.
func (r *run) reborn(t *testing.T) *run {
	c := r.crashes[r.random.IntN(len(r.crashes))]
	for range 20 {
		if strings.HasPrefix(c.op, "datasync") {
			break
		}
		c = r.crashes[r.random.IntN(len(r.crashes))]
	}
	found, err := local.Check(context.Background(), "data", crashOptions(c.fs.Crash(0)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("seed %d: %v", r.seed, err)
	}
	next := &run{
		seed: r.seed + 1<<40, fs: c.fs.Crash(0), states: map[int64]map[string]string{1: {}},
		acked: max(1, found.Revision), compacted: c.compacted, asked: r.asked,
	}
	for revision, state := range r.states {
		if revision <= found.Revision {
			next.states[revision] = state
		}
	}
	return next
}

func (r *run) step(t *testing.T) {
	ctx := context.Background()
	if r.random.IntN(12) == 0 {
		revision := max(1, r.engine.Revision()-r.random.Int64N(10))
		r.mu.Lock()
		r.asked = max(r.asked, revision)
		r.mu.Unlock()
		if err := r.engine.Compact(ctx, revision); err != nil {
			t.Fatalf("seed %d: %v", r.seed, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.compacted = max(r.compacted, revision)
		return
	}
	var ops []store.Op
	revision := r.engine.Revision() + 1
	next := map[string]string{}
	r.mu.Lock()
	for k, v := range r.states[revision-1] {
		next[k] = v
	}
	for _, i := range r.random.Perm(6)[:1+r.random.IntN(3)] {
		op := store.Op{Key: fmt.Sprintf("/r/pods/%d", i), Expect: store.Any}
		if r.random.IntN(4) > 0 {
			op.Value = []byte(strings.Repeat(fmt.Sprint(revision, " "), r.random.IntN(60)))
			next[op.Key] = string(op.Value)
		} else {
			delete(next, op.Key)
		}
		ops = append(ops, op)
	}
	r.states[revision] = next
	r.mu.Unlock()
	got, _, err := r.engine.Commit(ctx, ops...)
	if err != nil || got != revision && got != revision-1 {
		t.Fatalf("seed %d: commit: %d, %v", r.seed, got, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.acked = got
}

// recover opens what a crash has left and compares.
func (r *run) recover(t *testing.T, c crash) {
	t.Helper()
	ctx := context.Background()
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("crash at %q, disk seed %d: %s", c.op, c.seed, fmt.Sprintf(format, args...))
	}
	engine, err := local.Open("data", crashOptions(c.fs))
	if err != nil {
		fail("%v", err)
		return
	}
	revision := engine.Revision()
	_, begun := r.states[revision]
	if revision < c.acked || revision > c.acked+1 || !begun {
		fail("revision %d, acknowledged %d", revision, c.acked)
	}
	if compacted := engine.Compacted(); compacted < c.compacted || compacted > max(r.asked, revision-30) {
		fail("compacted to %d, acknowledged %d, at %d", compacted, c.compacted, revision)
	}
	for at := engine.Compacted(); at <= revision; at++ {
		page, err := engine.Range(ctx, store.Range{Revision: at})
		want := r.states[at]
		if err != nil || len(page.Records) != len(want) {
			fail("revision %d: %d keys, want %d, %v", at, len(page.Records), len(want), err)
			continue
		}
		for _, record := range page.Records {
			if v, ok := want[record.Key]; !ok || v != string(record.Value) {
				fail("revision %d: %s is %q, want %q", at, record.Key, record.Value, v)
			}
		}
	}
	// It goes on, and does so over a restart.
	if got, _, err := engine.Commit(ctx, store.Op{Key: "/after", Value: []byte("x")}); err != nil || got != revision+1 {
		fail("commit after the crash: %d, %v", got, err)
	}
	if err := engine.Close(); err != nil {
		fail("%v", err)
	}
	if report, err := local.Check(ctx, "data", crashOptions(c.fs)); err != nil || report.Revision != revision+1 || report.Torn != 0 {
		fail("check: %+v, %v", report, err)
	}
}

// TestDiskFails has each operation on the disk fail once, without a crash. What was acknowledged stays, readers see
// nothing that was not, and after opening again the store holds at least what was acknowledged.
func TestDiskFails(t *testing.T) {
	broken := errors.New("broken")
	ctx := context.Background()
	failures := 0
	for n := 0; ; n++ {
		fs := disk.NewMem()
		engine, err := local.Open("data", crashOptions(fs))
		if err != nil {
			t.Fatal(err)
		}
		count, hit := 0, ""
		var mu sync.Mutex
		fs.Hook = func(op, name string) error {
			mu.Lock()
			defer mu.Unlock()
			if count++; count == n+1 && !strings.HasPrefix(name, "data/checkpoint") {
				hit = op
				return broken
			}
			return nil
		}
		acked := int64(1)
		for i := range 30 {
			revision, _, err := engine.Commit(ctx, store.Op{Key: fmt.Sprint("/", i%5), Value: make([]byte, 300), Expect: store.Any})
			if err == nil {
				if hit == "write" || hit == "datasync" || hit == "sync" {
					t.Fatalf("commit %d succeeds after a failed %s", i, hit)
				}
				acked = revision
				continue
			}
			if !errors.Is(err, broken) || !errors.Is(err, store.ErrReadOnly) {
				t.Fatalf("commit after failed %s: %v", hit, err)
			}
			if page, err := engine.Range(ctx, store.Range{}); err != nil || page.Revision != acked {
				t.Fatalf("after failed %s: reads at %d, %v, acknowledged %d", hit, page.Revision, err, acked)
			}
		}
		if err := engine.Close(); err != nil && !errors.Is(err, broken) {
			t.Fatal(err)
		}
		fs.Hook = nil
		engine, err = local.Open("data", crashOptions(fs))
		if err != nil {
			t.Fatalf("open after failed %s: %v", hit, err)
		}
		if revision := engine.Revision(); revision < acked || revision > acked+1 {
			t.Fatalf("after failed %s: revision %d, acknowledged %d", hit, revision, acked)
		}
		if err := engine.Close(); err != nil {
			t.Fatal(err)
		}
		if count <= n {
			break
		}
		if hit != "" {
			failures++
		}
	}
	if failures < 60 {
		t.Errorf("only %d operations failed", failures)
	}
}
