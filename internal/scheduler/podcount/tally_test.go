// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podcount_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
)

// shares is what a node adds to its domains: pods in its zone, and against its rack two for each, or less than nothing.
func shares(n fwk.NodeInfo, add podcount.Share) {
	for _, p := range n.GetPods() {
		switch p.GetPod().Labels["is"] {
		case "zoned":
			add("zone", 1)
		case "racked":
			add("rack", 2)
		case "unracked":
			add("rack", -2)
		}
	}
	add("zone", 0)
}

// TestTally: whatever happens to nodes and pods, a tally that is kept says what one made anew would.
func TestTally(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 3))
		c, snapshot := cache.New(), cache.NewSnapshot()
		var kept podcount.Counter
		placed := map[types.UID]bool{}
		made := 0
		for step := range 60 {
			name := fmt.Sprint("n", r.IntN(8))
			switch r.IntN(6) {
			case 0:
				labels := map[string]string{"zone": fmt.Sprint("z", r.IntN(3))}
				if r.IntN(2) == 0 {
					labels["rack"] = fmt.Sprint("r", r.IntN(4))
				}
				if r.IntN(5) == 0 {
					delete(labels, "zone")
				}
				c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
			case 1:
				c.RemoveNode(name)
			case 2:
				for uid := range placed {
					c.RemovePod(uid)
					delete(placed, uid)
					break
				}
			default:
				made++
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("p", made), UID: types.UID(fmt.Sprint(made)),
					Labels: map[string]string{"is": []string{"zoned", "racked", "unracked", "other"}[r.IntN(4)]}}}
				p.Spec.NodeName = name
				info, err := nodeinfo.NewPodInfo(p)
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Assume(info); err != nil {
					t.Fatal(err)
				}
				placed[p.UID] = true
			}
			c.Update(snapshot)
			want := map[podcount.Domain]int64{}
			for _, n := range snapshot.Nodes() {
				shares(n, func(key string, by int64) {
					if d, ok := podcount.Of(n.Node(), key); ok {
						want[d] += by
					}
				})
			}
			nonzero := 0
			for _, n := range want {
				if n != 0 {
					nonzero++
				}
			}
			list := podcount.NewList(snapshot.Nodes(), snapshot)
			tally := kept.Tally(list, "criterion", shares)
			got := map[podcount.Domain]int64{}
			tally.Each(func(d podcount.Domain, n int64) { got[d] = n })
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d, step %d: -want +got\n%s", seed, step, diff)
			}
			if tally.Len() != len(want) || tally.NonZero() != nonzero {
				t.Fatalf("seed %d, step %d: %d domains, %d of them not 0, want %d and %d", seed, step, tally.Len(), tally.NonZero(), len(want), nonzero)
			}
			for _, n := range snapshot.Nodes() {
				for _, key := range []string{"zone", "rack"} {
					d, labelled := podcount.Of(n.Node(), key)
					for _, of := range []fwk.NodeInfo{n, elsewhere{n}} {
						if got, ok := tally.At(of, key); got != want[d] || ok != labelled {
							t.Fatalf("seed %d, step %d: at node %s, %s: %d, %v; want %d, %v", seed, step, n.Node().Name, key, got, ok, want[d], labelled)
						}
					}
				}
			}
			argue(t, r, tally, want)
		}
	}
}

// elsewhere is a node that has no place in a snapshot.
type elsewhere struct{ fwk.NodeInfo }

// TestTallyOfPassingDomains: nodes come with names that were never there before, and what is kept of those that went stays little.
func TestTallyOfPassingDomains(t *testing.T) {
	c, snapshot := cache.New(), cache.NewSnapshot()
	var kept podcount.Counter
	count := func(_ fwk.NodeInfo, add podcount.Share) { add("host", 1) }
	for i := range 1000 {
		name := fmt.Sprint("n", i)
		c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"host": name}}})
		c.Update(snapshot)
		tally := kept.Tally(podcount.NewList(snapshot.Nodes(), snapshot), "criterion", count)
		if there, ok := tally.At(snapshot.Nodes()[0], "host"); there != 1 || !ok || tally.Len() != 1 || tally.NonZero() != 1 {
			t.Fatalf("with node %s: %d, %v, %d domains, %d of them not 0", name, there, ok, tally.Len(), tally.NonZero())
		}
		if n := tally.Places(); n > 100 {
			t.Fatalf("%d places are kept for one node", n)
		}
		c.RemoveNode(name)
	}
}

// TestTallyOfFewNodes: what a few nodes add up to is asked about of many, and the few are looked at once.
func TestTallyOfFewNodes(t *testing.T) {
	c, snapshot := cache.New(), cache.NewSnapshot()
	for i := range 500 {
		name := fmt.Sprint("n", i)
		c.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"host": name}}})
	}
	c.Update(snapshot)
	var kept podcount.Counter
	looked := 0
	for range 5 {
		tally := kept.Tally(podcount.NewList(snapshot.Nodes()[:2], nil), "criterion", func(_ fwk.NodeInfo, add podcount.Share) {
			looked++
			add("host", 1)
		})
		for i, n := range snapshot.Nodes() {
			if there, ok := tally.At(n, "host"); !ok || (there == 1) != (i < 2) {
				t.Fatalf("node %d: %d, %v", i, there, ok)
			}
		}
	}
	if looked != 2 {
		t.Errorf("nodes were looked at %d times, want 2", looked)
	}
}

// argue puts and takes for the sake of argument, beside maps.
func argue(t *testing.T, r *rand.Rand, tally *podcount.Tally, base map[podcount.Domain]int64) {
	t.Helper()
	sums, want := podcount.Sums{Tally: tally}, maps.Clone(base)
	for range r.IntN(4) {
		if r.IntN(3) == 0 {
			apart := sums.Clone()
			apart.Add(podcount.Domain{Key: "zone", Value: "z0"}, 100) // must not be seen below
		}
		for d := range base {
			by := int64(r.IntN(5) - 2)
			sums.Add(d, by)
			want[d] += by
			break
		}
	}
	zero, least, first := true, int64(0), true
	for d, n := range want {
		if got := sums.Of(d); got != n {
			t.Fatalf("%v adds up to %d, want %d", d, got, n)
		}
		zero = zero && n == 0
		if first || n < least {
			least, first = n, false
		}
	}
	if sums.Zero() != zero || sums.Least() != least {
		t.Fatalf("zero: %v, least: %d; want %v, %d", sums.Zero(), sums.Least(), zero, least)
	}
}
