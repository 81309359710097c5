// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/mortise-dev/mortise/store"
)

// model is the reference: the whole state at every revision, and every change.
type model struct {
	store     *store.Store
	open      Open
	states    []map[string]modelRecord // by revision
	changes   []change
	compacted int64
	watchers  []*modelWatcher
}

type modelRecord struct {
	value             string
	revision, created int64
}

type modelWatcher struct {
	store.Watcher
	prefix string
	seen   int64
}

var modelKeys = []string{"/r/a/1", "/r/a/2", "/r/a/b/1", "/r/b/1", "/r/b", "/s", "/s/t", "zz"}

var modelPrefixes = []string{"", "/", "/r/", "/r/a/", "/r/a/1", "/r/b", "/s", "z", "none"}

// testModel performs random operations on an engine and on the reference, and compares every result. The library prints the smallest
// failing sequence that it finds, and how to run it again.
func testModel(t *testing.T, factory Factory, features Features) {
	if err := flag.Set("rapid.nofailfile", "true"); err != nil { // the printed seed is enough
		t.Fatal(err)
	}
	if features.Checks > 0 {
		before := flag.Lookup("rapid.checks").Value.String()
		if err := flag.Set("rapid.checks", strconv.Itoa(features.Checks)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = flag.Set("rapid.checks", before) }()
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{open: factory(t, NewClock()), compacted: 1, states: []map[string]modelRecord{nil, {}}}
		m.start(rt)
		defer m.stop(rt)
		actions := map[string]func(*rapid.T){
			"":        m.compare,
			"commit":  m.commit,
			"commit2": m.commit, // twice as likely
			"read":    m.read,
			"watch":   m.watch,
			"next":    m.next,
			"compact": m.compact,
		}
		if features.Durable {
			actions["restart"] = func(rt *rapid.T) { m.stop(rt); m.start(rt) }
		}
		rt.Repeat(actions)
	})
}

func (m *model) revision() int64 { return int64(len(m.states) - 1) }

func (m *model) now() map[string]modelRecord { return m.states[m.revision()] }

func (m *model) start(t *rapid.T) {
	engine, err := m.open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	m.store = store.New(engine)
}

func (m *model) stop(t *rapid.T) {
	for _, w := range m.watchers {
		w.Close()
	}
	m.watchers = nil
	if err := m.store.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func (m *model) compare(t *rapid.T) {
	if have := m.store.Revision(); have != m.revision() {
		t.Fatalf("revision %d, want %d", have, m.revision())
	}
	if have := m.store.Compacted(); have != m.compacted {
		t.Fatalf("compacted %d, want %d", have, m.compacted)
	}
}

// commit draws a transaction; most of its conditions hold.
func (m *model) commit(t *rapid.T) {
	keys := rapid.SliceOfNDistinct(rapid.SampledFrom(modelKeys), 0, 3, rapid.ID[string]).Draw(t, "keys")
	var ops []store.Op
	for i, key := range keys {
		op := store.Op{Key: key, Expect: store.Any}
		switch rapid.IntRange(0, 5).Draw(t, "expect") {
		case 0:
			op.Expect = rapid.Int64Range(0, m.revision()+1).Draw(t, "revision")
		case 1, 2, 3:
			op.Expect = m.now()[key].revision
		}
		if rapid.IntRange(0, 3).Draw(t, "delete") > 0 {
			op.Value = fmt.Appendf(nil, "%d.%d", m.revision()+1, i)
		}
		ops = append(ops, op)
	}
	var want string
	next := maps.Clone(m.now())
	var changes []change
	revision := m.revision() + 1
	for _, op := range ops {
		old, had := m.now()[op.Key]
		if op.Expect != store.Any && op.Expect != old.revision {
			want = fmt.Sprintf("conflict of %s with %d", op.Key, old.revision)
			break
		}
		c := change{revision, op.Key, "-", "-"}
		if had {
			c.Before = old.value
		}
		if op.Value != nil {
			c.After = string(op.Value)
			r := modelRecord{value: c.After, revision: revision, created: revision}
			if had {
				r.created = old.created
			}
			next[op.Key] = r
		} else {
			delete(next, op.Key)
		}
		if c.After != c.Before {
			changes = append(changes, c)
		}
	}
	if want == "" {
		if len(changes) > 0 {
			m.states = append(m.states, next)
			m.changes = append(m.changes, changes...)
		}
		want = fmt.Sprintf("revision %d", m.revision())
	}
	got, records, err := m.store.Commit(context.Background(), ops...)
	have := fmt.Sprintf("revision %d", got)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		var current int64
		if conflict.Current != nil {
			current = conflict.Current.Revision
		}
		have = fmt.Sprintf("conflict of %s with %d", conflict.Key, current)
	} else if err != nil {
		t.Fatalf("commit: %v", err)
	}
	if have != want {
		t.Fatalf("commit %v: %s, want %s", ops, have, want)
	}
	for i, r := range records {
		if (r == nil) != (ops[i].Value == nil) || r != nil && string(r.Value) != string(ops[i].Value) {
			t.Fatalf("commit %v: record %d is %s", ops, i, show(r))
		}
	}
}

func (m *model) read(t *rapid.T) {
	r := store.Range{Prefix: rapid.SampledFrom(modelPrefixes).Draw(t, "prefix"), Limit: rapid.IntRange(0, 4).Draw(t, "limit")}
	if rapid.Bool().Draw(t, "continue") {
		r.After = rapid.SampledFrom(modelKeys).Draw(t, "after")
	}
	if rapid.Bool().Draw(t, "past") {
		r.Revision = rapid.Int64Range(max(1, m.compacted-2), m.revision()+1).Draw(t, "revision")
	}
	page, err := m.store.Range(context.Background(), r)
	switch {
	case r.Revision > m.revision():
		wantError(t, err, store.ErrFuture)
		return
	case r.Revision != 0 && r.Revision < m.compacted:
		wantError(t, err, store.ErrCompacted)
		return
	case err != nil:
		t.Fatalf("range %+v: %v", r, err)
	}
	at := r.Revision
	if at == 0 {
		at = m.revision()
	}
	var want []string
	var remaining int64
	for _, key := range slices.Sorted(maps.Keys(m.states[at])) {
		if !strings.HasPrefix(key, r.Prefix) || r.After != "" && key <= r.After {
			continue
		}
		if r.Limit > 0 && len(want) == r.Limit {
			remaining++
			continue
		}
		x := m.states[at][key]
		want = append(want, fmt.Sprintf("%s=%q@%d/%d", key, x.value, x.revision, x.created))
	}
	var have []string
	for _, x := range page.Records {
		have = append(have, show(x))
	}
	if diff := cmp.Diff(want, have); diff != "" || page.Revision != at || page.Remaining != remaining {
		t.Fatalf("range %+v: at %d, %d remain, want %d, %d (-want +have):\n%s", r, page.Revision, page.Remaining, at, remaining, diff)
	}
}

func (m *model) watch(t *rapid.T) {
	w := &modelWatcher{prefix: rapid.SampledFrom(modelPrefixes).Draw(t, "prefix")}
	w.seen = rapid.Int64Range(max(0, m.compacted-2), m.revision()+1).Draw(t, "after")
	watcher, err := m.store.Watch(context.Background(), w.prefix, w.seen)
	switch {
	case w.seen > m.revision():
		wantError(t, err, store.ErrFuture)
	case w.seen < m.compacted:
		wantError(t, err, store.ErrCompacted)
	case err != nil:
		t.Fatalf("watch %q after %d: %v", w.prefix, w.seen, err)
	default:
		w.Watcher = watcher
		m.watchers = append(m.watchers, w)
	}
}

// next reads with a watcher that has events to see.
func (m *model) next(t *rapid.T) {
	var ready []*modelWatcher
	for _, w := range m.watchers {
		if len(m.missing(w)) > 0 {
			ready = append(ready, w)
		}
	}
	if len(ready) == 0 {
		return
	}
	w := rapid.SampledFrom(ready).Draw(t, "watcher")
	want := m.missing(w)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for len(want) > 0 {
		b, err := w.Next(ctx)
		// A watcher that is behind the compacted revision may get ErrCompacted even if it missed no change of its prefix; it must if it
		// missed one.
		if want[0].Revision <= m.compacted || w.seen < m.compacted && errors.Is(err, store.ErrCompacted) {
			wantError(t, err, store.ErrCompacted)
			m.watchers = slices.DeleteFunc(m.watchers, func(o *modelWatcher) bool { return o == w })
			w.Close()
			return
		}
		if err != nil {
			t.Fatalf("watch %q after %d: %v", w.prefix, w.seen, err)
		}
		var have []change
		for _, e := range b.Events {
			have = append(have, changeOf(e))
		}
		if diff := cmp.Diff(want[:min(len(have), len(want))], have); diff != "" {
			t.Fatalf("watch %q after %d (-want +have):\n%s", w.prefix, w.seen, diff)
		}
		want = want[len(have):]
		w.seen = b.Revision
	}
}

// missing returns the changes that the watcher has not seen yet.
func (m *model) missing(w *modelWatcher) (missing []change) {
	for _, c := range m.changes {
		if c.Revision > w.seen && strings.HasPrefix(c.Key, w.prefix) {
			missing = append(missing, c)
		}
	}
	return missing
}

func (m *model) compact(t *rapid.T) {
	revision := rapid.Int64Range(1, m.revision()+1).Draw(t, "revision")
	if rapid.IntRange(0, 2).Draw(t, "rarely") > 0 {
		revision = min(revision, m.compacted+2)
	}
	err := m.store.Compact(context.Background(), revision)
	if revision > m.revision() {
		wantError(t, err, store.ErrFuture)
		return
	}
	if err != nil {
		t.Fatalf("compact %d: %v", revision, err)
	}
	m.compacted = max(m.compacted, revision)
}
