// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// scopedFixture is a fixture whose objects have a label as their spec.nodeName.
func scopedFixture(t *testing.T) *fixture {
	f := newFixture(t, 1<<20)
	f.Fields = func(hub resource.Object) fields.Set { return fields.Set{NodeName: hub.GetLabels()["node"]} }
	return f
}

// record is an object of a node, as it is stored; of no node: nil.
func record(t *testing.T, node string) *store.Record {
	t.Helper()
	if node == "" {
		return nil
	}
	b, err := codec{}.Encode(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"node": node}}})
	if err != nil {
		t.Fatal(err)
	}
	return &store.Record{Value: b}
}

// TestScopes checks which changes rouse a cursor of each scope, and that it continues with them.
func TestScopes(t *testing.T) {
	f := scopedFixture(t)
	changes := []struct{ ns, name, before, after string }{
		{"a", "x", "", "n1"}, {"a", "x", "n1", "n1"}, {"a", "xy", "n1", "n2"}, {"b", "x", "n2", ""}, {"b", "y", "-", "n3"}, {"ab", "y", "", "-"},
	}
	for name, c := range map[string]struct {
		scope Scope
		want  []int64
	}{
		"all":          {Scope{}, []int64{1, 2, 3, 4, 5, 6}},
		"key":          {ByKey(f.Key("a", "x")), []int64{1, 2}},
		"name":         {ByName("x"), []int64{1, 2, 4}},
		"namespace":    {ByNamespace(f.Under("b")), []int64{4, 5}},
		"node":         {ByNode("n1"), []int64{1, 2, 3}},
		"node before":  {ByNode("n2"), []int64{3, 4}},
		"node after":   {ByNode("n3"), []int64{5}},
		"another node": {ByNode("n"), nil},
		"another key":  {ByKey(f.Key("b", "xy")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			feed := &Feed{kind: f.Kind, capacity: 1, lag: maxLag, lagBytes: maxLagBytes, space: milestoneEvents}
			tail := &node{}
			feed.waiting.begin(tail)
			feed.head.Store(tail)
			feed.tail.Store(tail)
			cursor, other := &Cursor{feed: feed, at: tail}, &Cursor{feed: feed, at: tail}
			cursor.Narrow(c.scope)
			other.Narrow(ByKey("of another"))
			if !other.Await(func() func() { t.Error("what concerns no one rouses"); return nil }) {
				t.Fatal("a new cursor does not wait")
			}
			var got []int64
			for i, change := range changes {
				roused, begun := false, false
				if !cursor.Await(func() func() { roused = true; return func() { begun = true } }) {
					t.Fatalf("the cursor does not wait before change %d", i+1)
				}
				at := int64(i + 1)
				tail = feed.extend(tail, store.Batch{Revision: at, Events: []store.Event{{
					Revision: at, Key: f.Key(change.ns, change.name), Previous: record(t, change.before), Record: record(t, change.after),
				}}})
				feed.seen.Store(at)
				if roused != begun {
					t.Errorf("change %d roused it: %t, and had it begin: %t", at, roused, begun)
				}
				if !roused {
					if cursor.at != nil {
						t.Errorf("the cursor holds on to the list before change %d", at)
					}
					continue
				}
				events, seen, err := cursor.Next(t.Context())
				if err != nil || seen != at || len(events) != 1 || events[0].Revision != at {
					t.Errorf("change %d: got %v, seen %d, %v", at, events, seen, err)
				}
				if cursor.More() {
					t.Errorf("there is more after the last change %d", at)
				}
				got = append(got, at)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("roused by %v, want %v", got, c.want)
			}
			if seen := cursor.Seen(); seen != 6 {
				t.Errorf("it has seen %d of 6", seen)
			}
			cursor.Close()
			other.Close()
			for scope, left := range feed.waiting.cursors {
				if len(left) > 0 {
					t.Errorf("%d of %v still wait", len(left), scope)
				}
			}
			if n := feed.waiting.byNode.Load(); n != 0 {
				t.Errorf("%d have the scope of a cluster node", n)
			}
		})
	}
}

// TestUnreadableConcernsEveryNode checks that a change whose object cannot be decoded wakes the watches of every cluster node.
func TestUnreadableConcernsEveryNode(t *testing.T) {
	f := scopedFixture(t)
	c, err := f.Feed.Cursor(t.Context(), f.store.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Narrow(ByNode("n1"))
	roused := make(chan struct{})
	if !c.Await(func() func() { close(roused); return nil }) {
		t.Fatal("a new cursor does not wait")
	}
	if _, err := f.store.Update(t.Context(), f.Key("a", "b"), store.Any, []byte("{"), 0); err != nil {
		t.Fatal(err)
	}
	<-roused
}

// TestParkedCursorsEndWithTheirFeed checks that a feed that begins anew leaves none waiting that belong to the changes before.
func TestParkedCursorsEndWithTheirFeed(t *testing.T) {
	feed := &Feed{}
	first := &node{revision: 1}
	feed.waiting.begin(first)
	c := &Cursor{feed: feed, at: first}
	c.Narrow(ByName("x"))
	roused := false
	if !c.Await(func() func() { roused = true; return nil }) {
		t.Fatal("a new cursor does not wait")
	}
	broken := errors.New("broken")
	first.err.Store(&broken)
	feed.waiting.begin(&node{revision: 9})
	if !roused {
		t.Error("the cursor still waits")
	}
	if _, seen, err := c.Next(t.Context()); !errors.Is(err, broken) || seen != 1 {
		t.Errorf("it has seen %d, and ends with %v", seen, err)
	}
}

// TestScopedCursorsMissNothing has cursors of random scopes read what concurrent writers write: each gets all that concerns it,
// once and in order, whenever it reads, waits, or asks how far it is.
func TestScopedCursorsMissNothing(t *testing.T) {
	const writers, writes, cursors = 4, 300, 24
	f := scopedFixture(t)
	names, nodes, namespaces := []string{"x", "y", "z"}, []string{"n1", "n2"}, []string{"a", "b"}
	concerns := func(s Scope, e *Event) bool {
		switch s.by {
		case byKey:
			return e.Key == s.value
		case byName:
			return strings.HasSuffix(e.Key, "/"+s.value)
		case byNamespace:
			return strings.HasPrefix(e.Key, s.value)
		case byNode:
			for _, r := range []*store.Record{e.Previous, e.Record} {
				if r != nil && strings.Contains(string(r.Value), `"`+s.value+`"`) {
					return true
				}
			}
			return false
		}
		return true
	}
	from := f.store.Revision()
	all, err := f.Feed.Cursor(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	var readers, writing sync.WaitGroup
	got := make([][]int64, cursors)
	of := make([]Scope, cursors)
	last := make(chan struct{}) // closed when the last change is written
	for i := range cursors {
		pick := func(of []string) string { return of[rand.IntN(len(of))] }
		of[i] = []Scope{
			{}, ByKey(f.Key(pick(namespaces), pick(names))), ByName(pick(names)), ByNode(pick(nodes)), ByNamespace(f.Under(pick(namespaces))),
		}[i%5]
		c, err := f.Feed.Cursor(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		c.Narrow(of[i])
		readers.Go(func() {
			defer c.Close()
			next := func() {
				events, _, err := c.Next(t.Context())
				if err != nil {
					t.Error(err)
				}
				for j := range events {
					if concerns(of[i], &events[j]) {
						got[i] = append(got[i], events[j].Revision)
					}
				}
			}
			for !t.Failed() {
				roused := make(chan struct{}, 1)
				if !c.Await(func() func() { roused <- struct{}{}; return nil }) {
					next()
				} else if rand.IntN(4) == 0 {
					c.Seen()
				} else {
					select {
					case <-roused:
					case <-last:
						for c.More() {
							next()
						}
						return
					}
				}
			}
		})
	}
	for range writers {
		writing.Go(func() {
			for range writes {
				b := fmt.Appendf(nil, `{"metadata":{"labels":{"node":%q}}}`, nodes[rand.IntN(2)])
				if _, err := f.store.Update(t.Context(), f.Key(namespaces[rand.IntN(2)], names[rand.IntN(3)]), store.Any, b, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	end := f.store.Revision()
	want := make([][]int64, cursors)
	for all.After() < end {
		await(t, all)
		events, _, err := all.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for j := range events {
			for i := range cursors {
				if concerns(of[i], &events[j]) {
					want[i] = append(want[i], events[j].Revision)
				}
			}
		}
	}
	close(last)
	readers.Wait()
	for i := range cursors {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("a cursor of %v got %d changes, want %d", of[i], len(got[i]), len(want[i]))
		}
	}
}
