// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/store"
)

// change is one expected event.
type change struct {
	Revision int64
	Key      string
	After    string // value; "-" for a delete
	Before   string // "-" for a create
}

func changeOf(e store.Event) change {
	c := change{e.Revision, e.Key, "-", "-"}
	if e.Record != nil {
		c.After = string(e.Record.Value)
	}
	if e.Previous != nil {
		c.Before = string(e.Previous.Value)
	}
	return c
}

// observed is the events that one watcher saw, and those that it should have seen.
type observed struct {
	prefix  string
	after   int64
	batches []store.Batch
	want    []change
}

func (o observed) String() string { return fmt.Sprintf("watch of %q after %d", o.prefix, o.after) }

// observe lets writers race while watchers with several prefixes begin at several revisions, some of them reading slowly.
func observe(t *testing.T, f *fixture) []observed {
	t.Helper()
	const writers, transactions = 4, 60
	prefixes := []string{"", "/r/", "/r/pods/", "/r/pods/a", "/r/leases/", "/r/le", "/r/none/"}
	var (
		mu      sync.Mutex
		commits = map[int64][]store.Op{}
		all     []observed
		wg      sync.WaitGroup
		watches sync.WaitGroup
	)
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	last := make(chan struct{})
	var final int64
	watch := func(prefix string, after int64, slow bool) {
		w, err := f.Watch(ctx, prefix, after)
		if err != nil {
			t.Errorf("watch: %v", err)
			return
		}
		watches.Go(func() {
			defer w.Close()
			o := observed{prefix: prefix, after: after}
			if slow {
				<-last
			}
			for !o.ended(last, &final) {
				b, err := w.Next(ctx)
				if err != nil {
					t.Errorf("%v: next: %v", o, err)
					return
				}
				o.batches = append(o.batches, b)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, o)
		})
	}
	for i, prefix := range prefixes {
		watch(prefix, f.Revision(), i%2 == 0)
	}
	for writer := range writers {
		random := rand.New(rand.NewPCG(f.random.Uint64(), 4))
		wg.Go(func() {
			for i := range transactions {
				var ops []store.Op
				keys := map[string]bool{}
				for range 1 + random.IntN(3) {
					key := fmt.Sprintf("/r/%s/%c/%d", []string{"pods", "leases", "nodes"}[random.IntN(3)], 'a'+random.IntN(2), random.IntN(5))
					if keys[key] {
						continue
					}
					keys[key] = true
					op := store.Op{Key: key, Expect: store.Any}
					if random.IntN(4) > 0 {
						op.Value = fmt.Appendf(nil, "%d.%d", writer, i)
					}
					ops = append(ops, op)
				}
				revision, _, err := f.Commit(ctx, ops...)
				if err != nil {
					t.Errorf("commit: %v", err)
					return
				}
				mu.Lock()
				// A transaction without changes returns another transaction's revision; its ops change nothing there either.
				commits[revision] = append(commits[revision], ops...)
				mu.Unlock()
				if i%20 == 10 {
					watch(prefixes[random.IntN(len(prefixes))], revision, random.IntN(2) == 0)
				}
			}
		})
	}
	wg.Wait()
	// A last change under each prefix, so that every watcher sees an end.
	var ops []store.Op
	for _, key := range []string{"/r/pods/a/end", "/r/leases/a/end", "/r/none/end"} {
		ops = append(ops, store.Op{Key: key, Value: []byte("end")})
	}
	revision, _, err := f.Commit(ctx, ops...)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	commits[revision] = ops
	final = revision
	close(last)
	f.Bookmark()
	watches.Wait()
	changes := replayCommits(commits)
	for i := range all {
		for _, c := range changes {
			if c.Revision > all[i].after && strings.HasPrefix(c.Key, all[i].prefix) {
				all[i].want = append(all[i].want, c)
			}
		}
	}
	if len(all) < len(prefixes) {
		t.Fatalf("%d watchers came to an end", len(all))
	}
	return all
}

// ended reports whether the watcher has seen the final revision.
func (o observed) ended(last <-chan struct{}, final *int64) bool {
	select {
	case <-last:
		n := len(o.batches)
		return n > 0 && o.batches[n-1].Revision >= *final
	default:
		if n := len(o.batches); n > 0 {
			for _, e := range o.batches[n-1].Events {
				if strings.HasSuffix(e.Key, "/end") {
					return true
				}
			}
		}
		return false
	}
}

// replayCommits computes the changes from the ops by revision.
func replayCommits(commits map[int64][]store.Op) []change {
	var revisions []int64
	for r := range commits {
		revisions = append(revisions, r)
	}
	slices.Sort(revisions)
	state := map[string]string{}
	var changes []change
	for _, r := range revisions {
		for _, op := range commits[r] {
			before, had := state[op.Key]
			if !had {
				before = "-"
			}
			switch {
			case op.Value != nil:
				state[op.Key] = string(op.Value)
				changes = append(changes, change{r, op.Key, string(op.Value), before})
			case had:
				delete(state, op.Key)
				changes = append(changes, change{r, op.Key, "-", before})
			}
		}
	}
	return changes
}

func testOrdered(t *testing.T, f *fixture) {
	for _, o := range observe(t, f) {
		told, seen := o.after, o.after
		for _, b := range o.batches {
			if b.Revision <= told {
				t.Errorf("ordered: %v: batch of revision %d after %d", o, b.Revision, told)
			}
			for _, e := range b.Events {
				if e.Revision < seen || e.Revision <= told || e.Revision > b.Revision {
					t.Errorf("ordered: %v: event of revision %d after %d in batch (%d, %d]", o, e.Revision, seen, told, b.Revision)
				}
				seen = e.Revision
			}
			told = b.Revision
		}
	}
}

func testUnique(t *testing.T, f *fixture) {
	for _, o := range observe(t, f) {
		seen := map[change]bool{}
		for _, b := range o.batches {
			for _, e := range b.Events {
				id := change{Revision: e.Revision, Key: e.Key}
				if seen[id] {
					t.Errorf("unique: %v: %v twice", o, changeOf(e))
				}
				seen[id] = true
			}
		}
	}
}

func testAtomic(t *testing.T, f *fixture) {
	// A long backlog of transactions of three ops, so that no engine returns it in one batch by chance.
	before, backlog := f.Revision(), int64(300)
	w := f.watch(t, "/backlog/", before)
	for i := range backlog {
		var ops []store.Op
		for j := range 3 {
			ops = append(ops, store.Op{Key: fmt.Sprintf("/backlog/keys/%d", j), Value: fmt.Append(nil, i), Expect: store.Any})
		}
		if _, _, err := f.Commit(f.ctx, ops...); err != nil {
			t.Fatal(err)
		}
	}
	for seen := before; seen < before+backlog; {
		b := next(t, w)
		if want := 3 * (b.Revision - seen); int64(len(b.Events)) != want {
			t.Fatalf("atomic: batch (%d, %d] has %d events, want %d", seen, b.Revision, len(b.Events), want)
		}
		seen = b.Revision
	}
	for _, o := range observe(t, f) {
		want := map[int64]int{}
		for _, c := range o.want {
			want[c.Revision]++
		}
		for _, b := range o.batches {
			have := map[int64]int{}
			for _, e := range b.Events {
				have[e.Revision]++
			}
			for revision, n := range have {
				if n != want[revision] {
					t.Errorf("atomic: %v: a batch has %d of the %d events of revision %d", o, n, want[revision], revision)
				}
			}
		}
	}
}

func testReliable(t *testing.T, f *fixture) {
	for _, o := range observe(t, f) {
		var have []change
		for _, b := range o.batches {
			for _, e := range b.Events {
				have = append(have, changeOf(e))
			}
		}
		byKey := func(a, b change) int {
			if a.Revision != b.Revision {
				return int(a.Revision - b.Revision)
			}
			return strings.Compare(a.Key, b.Key)
		}
		slices.SortFunc(have, byKey)
		slices.SortFunc(o.want, byKey)
		if diff := cmp.Diff(o.want, have); diff != "" {
			t.Errorf("reliable: %v (-want +have):\n%s", o, diff)
		}
	}
}

// testWakes lets watchers wait for each commit, with nothing else to wake them.
func testWakes(t *testing.T, f *fixture) {
	const rounds = 100
	prefixes := []string{"", "/r/", "/r/pods/", "/r/pods/a/"}
	seen := make(chan string)
	var watches sync.WaitGroup
	defer watches.Wait()
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	for _, prefix := range prefixes {
		w := f.watch(t, prefix, f.Revision())
		watches.Go(func() {
			for range rounds {
				b, err := w.Next(ctx)
				for err == nil && len(b.Events) == 0 {
					b, err = w.Next(ctx)
				}
				if err != nil {
					t.Errorf("reliable: watch of %q: %v", prefix, err)
					cancel()
					return
				}
				select {
				case seen <- prefix:
				case <-ctx.Done():
				}
			}
		})
	}
	for i := range rounds {
		must[*store.Record](t)(f.Update(f.ctx, "/r/pods/a/1", store.Any, fmt.Append(nil, i), 0))
		for range prefixes {
			select {
			case <-seen:
			case <-ctx.Done():
				return
			}
		}
	}
}

// history creates some revisions and returns the changes under the prefix.
func (f *fixture) history(t *testing.T, n int) []change {
	t.Helper()
	var changes []change
	values := map[string]string{}
	for i := range n {
		key := fmt.Sprintf("/r/pods/%d", i%7)
		value := fmt.Sprint(i)
		r := must[*store.Record](t)(f.Update(f.ctx, key, store.Any, []byte(value), 0))
		before, had := values[key]
		if !had {
			before = "-"
		}
		changes = append(changes, change{r.Revision, key, value, before})
		values[key] = value
		f.create(t, fmt.Sprintf("/r/other/%d", r.Revision), "x")
	}
	return changes
}

// resume watches from the revision of each change on, and compares the events.
func (f *fixture) resume(t *testing.T, changes []change) {
	t.Helper()
	for i, c := range changes[:len(changes)-1] {
		w := must[store.Watcher](t)(f.Watch(f.ctx, "/r/pods/", c.Revision))
		var have []change
		for len(have) < len(changes)-i-1 {
			for _, e := range next(t, w).Events {
				have = append(have, changeOf(e))
			}
		}
		w.Close()
		if diff := cmp.Diff(changes[i+1:], have); diff != "" {
			t.Fatalf("resumable: after %d (-want +have):\n%s", c.Revision, diff)
		}
	}
}

func testResumable(t *testing.T, f *fixture) {
	f.resume(t, f.history(t, 40))
}

func testResumableAfterRestart(t *testing.T, f *fixture) {
	changes := f.history(t, 20)
	before := must[store.Page](t)(f.Range(f.ctx, store.Range{Prefix: "/r/pods/", Revision: changes[9].Revision}))
	revision := f.Revision()
	f.reopen(t)
	if f.Revision() != revision {
		t.Fatalf("resumable: revision %d has become %d", revision, f.Revision())
	}
	f.resume(t, changes)
	after := must[store.Page](t)(f.Range(f.ctx, store.Range{Prefix: "/r/pods/", Revision: changes[9].Revision}))
	if diff := cmp.Diff(showAll(before.Records), showAll(after.Records)); diff != "" {
		t.Errorf("revision %d reads otherwise after a restart:\n%s", changes[9].Revision, diff)
	}
}

func testBookmarkable(t *testing.T, f *fixture) {
	ctx, cancel := context.WithTimeout(f.ctx, patience)
	defer cancel()
	f.create(t, "/r/other/1", "x")
	w := f.watch(t, "/r/pods/", 1)
	b, err := w.Next(ctx)
	if err != nil || len(b.Events) != 0 || b.Revision != 2 {
		t.Fatalf("bookmarkable: the first batch is %+v, %v, want a bookmark of revision 2", b, err)
	}
	// A waiting watcher learns of it too, in the engine's time or on demand.
	got := make(chan store.Batch, 1)
	go func() {
		b, _ := w.Next(ctx)
		got <- b
	}()
	f.create(t, "/r/other/2", "x")
	var told store.Batch
	for told.Revision == 0 {
		f.clock.Advance(time.Minute)
		f.Bookmark()
		select {
		case told = <-got:
		default:
		}
		if ctx.Err() != nil {
			t.Fatal("bookmarkable: a waiting watcher never learns")
		}
	}
	if len(told.Events) != 0 || told.Revision != 3 {
		t.Errorf("bookmarkable: %+v, want a bookmark of revision 3", told)
	}
	f.create(t, "/r/pods/1", "x")
	if b := next(t, w); b.Revision != 4 || len(b.Events) != 1 {
		t.Errorf("bookmarkable: the batch after a bookmark is %+v", b)
	}
}

func testCompactable(t *testing.T, f *fixture) {
	changes := f.history(t, 20)
	middle := changes[9].Revision
	want := must[store.Page](t)(f.Range(f.ctx, store.Range{Revision: middle}))
	slow := f.watch(t, "/r/pods/", 1)
	current := f.watch(t, "/r/pods/", changes[10].Revision)
	if err := f.Compact(f.ctx, middle); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if f.Compacted() != middle {
			t.Errorf("compactable: compacted to %d, want %d", f.Compacted(), middle)
		}
		_, err := f.Range(f.ctx, store.Range{Revision: middle - 1})
		wantError(t, err, store.ErrCompacted)
		_, err = f.Watch(f.ctx, "/r/pods/", middle-1)
		wantError(t, err, store.ErrCompacted)
		_, err = f.Watch(f.ctx, "", 0)
		wantError(t, err, store.ErrCompacted)
		have := must[store.Page](t)(f.Range(f.ctx, store.Range{Revision: middle}))
		if diff := cmp.Diff(showAll(want.Records), showAll(have.Records)); diff != "" {
			t.Errorf("compactable: revision %d has changed:\n%s", middle, diff)
		}
		f.resume(t, changes[9:])
	}
	check()
	_, err := slow.Next(f.ctx)
	wantError(t, err, store.ErrCompacted)
	if b := next(t, current); changeOf(b.Events[0]) != changes[11] {
		t.Errorf("compactable: a watcher that was past it sees %v", changeOf(b.Events[0]))
	}
	if err := f.Compact(f.ctx, middle-1); err != nil {
		t.Errorf("compactable: compacting again to before: %v", err)
	}
	wantError(t, f.Compact(f.ctx, f.Revision()+1), store.ErrFuture)
	check()
}
