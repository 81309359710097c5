// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podcount counts pods on nodes and in domains by a criterion, and caches the counts: it does not count a node again whose
// generation is unchanged. Spreading and affinity use it, so that a decision reads the nodes that changed since the last similar decision,
// and only the generations of the others.
package podcount

import (
	"math"
	"sync"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// most is the number of cached criteria, mostShares the number of nodes over all of them.
const (
	most       = 256
	mostShares = 1 << 21
)

// Counter caches counts. The zero value is ready; its methods may be called concurrently.
type Counter struct {
	mu      sync.Mutex
	columns map[string]*column
	tallies map[string]*Tally
	clock   uint64
}

// List is a list of nodes and their generations.
type List struct {
	nodes       []fwk.NodeInfo
	generations []int64
}

// NewList returns the list of the nodes. If they are those of a snapshot, it takes the generations from there.
func NewList(nodes []fwk.NodeInfo, from fwk.SharedLister) List {
	if s, ok := from.(interface {
		Nodes() []fwk.NodeInfo
		Generations() []int64
	}); ok && len(nodes) > 0 {
		if all := s.Nodes(); len(all) == len(nodes) && &all[0] == &nodes[0] {
			return List{nodes, s.Generations()}
		}
	}
	l := List{nodes, make([]int64, len(nodes))}
	for i, n := range nodes {
		l.generations[i] = n.GetGeneration()
	}
	return l
}

// Len returns the number of nodes.
func (l List) Len() int { return len(l.nodes) }

// Tally returns the sums of nodes by domain. key names the criterion: equal keys mean that find returns the same for a node.
func (c *Counter) Tally(l List, key string, find func(n fwk.NodeInfo, add Share)) *Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	t := c.tallies[key]
	if t == nil {
		if c.tallies == nil {
			c.tallies = map[string]*Tally{}
		}
		if len(c.tallies) >= most || (len(c.tallies)+1)*l.Len() > mostShares {
			forget(c.tallies, func(t *Tally) uint64 { return t.used })
		}
		t = &Tally{index: map[Domain]int32{}}
		c.tallies[key] = t
	}
	t.used = c.clock
	t.update(l.nodes, l.generations, find)
	return t
}

type column struct {
	generation []int64
	count      []int32
	used       uint64
}

// Count returns the number of matching pods on each node, in the order of nodes. key names the criterion: equal keys mean the same match.
// The slice is valid until the next call with that key.
func (c *Counter) Count(l List, key string, match func(*corev1.Pod) bool) []int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	col := c.columns[key]
	if col == nil || len(col.count) != l.Len() {
		if c.columns == nil {
			c.columns = map[string]*column{}
		}
		if len(c.columns) >= most {
			forget(c.columns, func(col *column) uint64 { return col.used })
		}
		// Generations are unique to a node's state, so counts of another list cannot be mistaken for these.
		col = &column{generation: make([]int64, l.Len()), count: make([]int32, l.Len())}
		c.columns[key] = col
	}
	col.used = c.clock
	for i, g := range l.generations {
		if col.generation[i] != g {
			col.generation[i], col.count[i] = g, Matching(l.nodes[i], match)
		}
	}
	return col.count
}

// Matching returns the number of matching pods on a node.
func Matching(n fwk.NodeInfo, match func(*corev1.Pod) bool) (total int32) {
	for _, p := range n.GetPods() {
		if match(p.GetPod()) {
			total++
		}
	}
	return total
}

// forget drops the least recently used entry.
func forget[T any](kept map[string]T, used func(T) uint64) {
	oldest, at := "", uint64(math.MaxUint64)
	for key, t := range kept {
		if u := used(t); u < at {
			oldest, at = key, u
		}
	}
	delete(kept, oldest)
}
