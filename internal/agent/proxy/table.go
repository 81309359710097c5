// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// rulebook has a family's rules in the kernel, in one packet filter. A table decides what changes in it; it is the only writer.
type rulebook interface {
	// mapped reports whether elements are in maps. Otherwise they are rules.
	mapped() bool
	// plain returns the maximum number of endpoints of a port without its own chains.
	plain() int
	// replace writes everything, whatever the kernel has: the skeleton, and a delta from nothing.
	replace(context.Context, surroundings, *delta) error
	// change writes a delta from the last written state. After an error the state of the kernel is unknown, and the next call is replace.
	change(context.Context, *delta) error
	// unswept reports whether unused objects remain, which sweep deletes a while later.
	unswept() bool
	sweep(context.Context) error
}

// table has one family's rules, as far as we know.
type table struct {
	family
	book  rulebook
	known bool // the kernel has the plans
	plans map[types.NamespacedName]*plan
	// claims are the names of the Services that have an element. Several have it if they share an endpoint or, by mistake, an address: the
	// verdict of the first one applies.
	claims map[element][]types.NamespacedName
}

func newTable(f family, book rulebook) *table {
	return &table{family: f, book: book, plans: map[types.NamespacedName]*plan{}, claims: map[element][]types.NamespacedName{}}
}

// change brings the kernel from the current plans to the new ones of some Services; a nil plan is a Service without rules.
func (t *table) change(ctx context.Context, want map[types.NamespacedName]*plan) error {
	d := t.compare(want)
	if d.empty() {
		return nil
	}
	if err := t.book.change(ctx, d); err != nil {
		t.known = false
		return fmt.Errorf("change %s rules: %w", t.ip, err)
	}
	return nil
}

// replace writes everything.
func (t *table) replace(ctx context.Context, s surroundings, want map[types.NamespacedName]*plan) error {
	t.plans, t.claims = map[types.NamespacedName]*plan{}, map[element][]types.NamespacedName{}
	err := t.book.replace(ctx, s, t.compare(want))
	if t.known = err == nil; err != nil {
		return fmt.Errorf("write %s rules: %w", t.ip, err)
	}
	return nil
}

// delta is the contents of a transaction.
type delta struct {
	chains   map[chain][]rule // to be written
	sets     []keep
	remove   []element
	add      []valued
	gone     []chain
	goneSets []keep
}

type valued struct {
	element
	verdict
}

func (d *delta) empty() bool {
	return len(d.chains)+len(d.sets)+len(d.remove)+len(d.add)+len(d.gone)+len(d.goneSets) == 0
}

// compare replaces plans, and returns the difference.
func (t *table) compare(want map[types.NamespacedName]*plan) *delta {
	d := &delta{chains: map[chain][]rule{}}
	type before struct {
		value verdict
		is    bool
	}
	touched := map[element]before{}
	touch := func(e element) {
		if _, seen := touched[e]; !seen {
			value, is := t.effective(e)
			touched[e] = before{value, is}
		}
	}
	names := slices.SortedFunc(maps.Keys(want), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	for _, name := range names { // before the loop below changes plans
		now, old := or(want[name]), or(t.plans[name])
		for e := range old.elements {
			touch(e)
		}
		for e := range now.elements {
			touch(e)
		}
	}
	for _, name := range names {
		now, old := or(want[name]), or(t.plans[name])
		for e := range old.elements {
			if _, still := now.elements[e]; !still {
				t.unclaim(e, name)
			}
		}
		for e := range now.elements {
			if _, did := old.elements[e]; !did {
				t.claim(e, name)
			}
		}
		for c, rules := range now.chains {
			if was, is := old.chains[c]; !is || !slices.EqualFunc(was, rules, rule.equal) {
				d.chains[c] = rules
			}
		}
		for c := range old.chains {
			if _, still := now.chains[c]; !still {
				d.gone = append(d.gone, c)
			}
		}
		for set := range now.affinity {
			if !old.affinity[set] {
				d.sets = append(d.sets, set)
			}
		}
		for set := range old.affinity {
			if !now.affinity[set] {
				d.goneSets = append(d.goneSets, set)
			}
		}
		if want[name] == nil {
			delete(t.plans, name)
		} else {
			t.plans[name] = want[name]
		}
	}
	for e, was := range touched {
		value, is := t.effective(e)
		if was.is && (!is || was.value != value) {
			d.remove = append(d.remove, e)
		}
		if is && (!was.is || was.value != value) {
			d.add = append(d.add, valued{e, value})
		}
	}
	return d
}

// or returns the plan, or an empty one for nil.
func or(p *plan) *plan {
	if p == nil {
		return &plan{}
	}
	return p
}

// effective returns the value of an element: that of the first Service that has it.
func (t *table) effective(e element) (verdict, bool) {
	by := t.claims[e]
	if len(by) == 0 {
		return verdict{}, false
	}
	return t.plans[by[0]].elements[e], true
}

func byName(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }

func (t *table) claim(e element, name types.NamespacedName) {
	by := t.claims[e]
	if i, is := slices.BinarySearchFunc(by, name, byName); !is {
		t.claims[e] = slices.Insert(by, i, name)
	}
}

func (t *table) unclaim(e element, name types.NamespacedName) {
	by := t.claims[e]
	i, is := slices.BinarySearchFunc(by, name, byName)
	if !is {
		return
	}
	if by = slices.Delete(by, i, i+1); len(by) == 0 {
		delete(t.claims, e)
	} else {
		t.claims[e] = by
	}
}
