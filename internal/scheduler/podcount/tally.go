// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podcount

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Domain is the set of nodes with one value of a topology key.
type Domain struct{ Key, Value string }

// Of returns the node's domain of a topology key, if it has one.
func Of(node *corev1.Node, key string) (Domain, bool) {
	value, ok := node.Labels[key]
	return Domain{key, value}, ok
}

// Tally holds the sums of the nodes by domain. Decisions share it: an update reads only nodes with a new generation. It is valid until the
// next call for the same criterion.
type Tally struct {
	generation []int64
	shares     [][]share // by node
	index      map[Domain]int32
	sums       []sum
	known      int // the sums with a share of some node
	keys       []string
	indexes    []domainIndex
	nonzero    int
	used       uint64
}

// domainIndex is the index in sums of each node's domain of a key, by slot. It is valid for a node until its generation changes.
type domainIndex struct {
	key        string
	generation []int64
	of         []int32 // -1: the node lacks the label
}

type share struct {
	of int32 // index into sums
	n  int64
}

type sum struct {
	domain Domain
	n      int64
	nodes  int // nodes with a share; 0: the domain is not known
}

// Share adds to the node's domain of a topology key; a node without that label is in no domain. A share of 0 makes the domain known.
type Share func(key string, n int64)

// Sum returns the sum of a domain; 0 if no node has a share.
func (t *Tally) Sum(d Domain) int64 {
	if i, ok := t.index[d]; ok {
		return t.sums[i].n
	}
	return 0
}

// At returns the sum of a node's domain; false if the node lacks the label. It is [Tally.Sum] without the lookups of labels and domains,
// which take most of a filter's time.
func (t *Tally) At(n fwk.NodeInfo, key string) (int64, bool) {
	s, ok := n.(interface{ Slot() (int, bool) })
	slot := 0
	if ok {
		slot, ok = s.Slot()
	}
	if !ok {
		d, ok := Of(n.Node(), key)
		return t.Sum(d), ok
	}
	p := t.indexOf(key)
	for slot >= len(p.of) {
		p.of, p.generation = append(p.of, 0), append(p.generation, 0)
	}
	if g := n.GetGeneration(); p.generation[slot] != g {
		p.generation[slot], p.of[slot] = g, -1
		if d, ok := Of(n.Node(), key); ok {
			p.of[slot] = t.sumOf(d)
		}
	}
	if i := p.of[slot]; i >= 0 {
		return t.sums[i].n, true
	}
	return 0, false
}

func (t *Tally) indexOf(key string) *domainIndex {
	for i := range t.indexes {
		if t.indexes[i].key == key {
			return &t.indexes[i]
		}
	}
	t.indexes = append(t.indexes, domainIndex{key: key})
	return &t.indexes[len(t.indexes)-1]
}

// sumOf returns the index of a domain in sums, and adds an unknown one.
func (t *Tally) sumOf(d Domain) int32 {
	i, ok := t.index[d]
	if !ok {
		i = int32(len(t.sums))
		t.sums = append(t.sums, sum{domain: d})
		t.index[d] = i
	}
	return i
}

// Len returns the number of known domains, NonZero the number of those whose sum is not 0.
func (t *Tally) Len() int     { return t.known }
func (t *Tally) NonZero() int { return t.nonzero }

// Keys returns the topology keys of the known domains, and perhaps of former ones. The slice is shared.
func (t *Tally) Keys() []string { return t.keys }

// Each calls f with each known domain.
func (t *Tally) Each(f func(d Domain, n int64)) {
	for i := range t.sums {
		if s := &t.sums[i]; s.nodes > 0 {
			f(s.domain, s.n)
		}
	}
}

// update reads the changed nodes again. It keeps the entries of domains that are no longer known until there are many.
func (t *Tally) update(nodes []fwk.NodeInfo, generations []int64, find func(n fwk.NodeInfo, add Share)) {
	asked := len(nodes) // the number of examined nodes: the list may hold only those that count
	for i := range t.indexes {
		asked = max(asked, len(t.indexes[i].of))
	}
	if len(t.sums)-t.known > 2*asked*max(1, len(t.indexes))+64 {
		*t = Tally{index: map[Domain]int32{}, used: t.used}
	}
	for slot := len(nodes); slot < len(t.shares); slot++ {
		t.take(slot)
	}
	for len(t.shares) < len(nodes) {
		t.shares, t.generation = append(t.shares, nil), append(t.generation, 0)
	}
	t.shares, t.generation = t.shares[:len(nodes)], t.generation[:len(nodes)]
	for slot, g := range generations {
		if t.generation[slot] == g {
			continue
		}
		t.take(slot)
		t.generation[slot] = g
		node := nodes[slot].Node()
		find(nodes[slot], func(key string, n int64) {
			if d, ok := Of(node, key); ok {
				t.give(slot, d, n)
			}
		})
	}
}

func (t *Tally) give(slot int, d Domain, n int64) {
	i := t.sumOf(d)
	if t.sums[i].nodes == 0 {
		t.known++
		if !slices.Contains(t.keys, d.Key) {
			t.keys = append(slices.Clip(t.keys), d.Key)
		}
	}
	t.sums[i].nodes++
	t.add(i, n)
	t.shares[slot] = append(t.shares[slot], share{i, n})
}

// take removes a node's shares.
func (t *Tally) take(slot int) {
	for _, s := range t.shares[slot] {
		t.add(s.of, -s.n)
		if t.sums[s.of].nodes--; t.sums[s.of].nodes == 0 {
			t.known--
		}
	}
	t.shares[slot] = t.shares[slot][:0]
}

func (t *Tally) add(i int32, n int64) {
	s := &t.sums[i]
	if s.n != 0 {
		t.nonzero--
	}
	if s.n += n; s.n != 0 {
		t.nonzero++
	}
}

// Sums is a tally with temporary additions, as for preemption. The zero value has no domains.
type Sums struct {
	Tally *Tally
	more  map[Domain]int64
}

// Clone returns an independent copy.
func (s Sums) Clone() Sums {
	return Sums{Tally: s.Tally, more: maps.Clone(s.more)}
}

// Add adds to a domain.
func (s *Sums) Add(d Domain, n int64) {
	if s.more == nil {
		s.more = map[Domain]int64{}
	}
	s.more[d] += n
}

// Keys returns the topology keys that domains may have.
func (s *Sums) Keys() []string {
	keys := s.Tally.Keys()
	for d := range s.more {
		if !slices.Contains(keys, d.Key) {
			keys = append(slices.Clip(keys), d.Key)
		}
	}
	return keys
}

// Of returns the sum of a domain.
func (s *Sums) Of(d Domain) int64 {
	n := s.Tally.Sum(d)
	if len(s.more) > 0 {
		n += s.more[d]
	}
	return n
}

// At returns the sum of a node's domain; false if the node lacks the label.
func (s *Sums) At(n fwk.NodeInfo, key string) (int64, bool) {
	if len(s.more) == 0 {
		return s.Tally.At(n, key)
	}
	d, ok := Of(n.Node(), key)
	return s.Of(d), ok
}

// Zero reports whether all sums are 0.
func (s *Sums) Zero() bool {
	nonzero := s.Tally.NonZero()
	for d, more := range s.more {
		n := s.Tally.Sum(d)
		if n != 0 {
			nonzero--
		}
		if n+more != 0 {
			nonzero++
		}
	}
	return nonzero == 0
}

// Least returns the smallest sum of a known domain; 0 if there is none.
func (s *Sums) Least() (least int64) {
	first := true
	s.Tally.Each(func(d Domain, n int64) {
		if len(s.more) > 0 {
			n += s.more[d]
		}
		if first || n < least {
			least, first = n, false
		}
	})
	return least
}
