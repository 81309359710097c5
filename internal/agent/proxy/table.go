// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"
)

// table is one family's table in the kernel, and what it holds as far as we know.
type table struct {
	family
	nft   knftables.Interface
	known bool // plans are what the kernel has
	plans map[types.NamespacedName]*plan
	// claims are the Services that have an element, by name. Several have one when they share an endpoint, or by mistake an
	// address: the first one's verdict holds.
	claims map[element][]types.NamespacedName
	// stale chains are empty and unused. A kernel before 6.2 lets them go only a while after the last that pointed to them.
	stale map[string]bool
}

func newTable(f family, nft knftables.Interface) *table {
	return &table{family: f, nft: nft, plans: map[types.NamespacedName]*plan{}, claims: map[element][]types.NamespacedName{}, stale: map[string]bool{}}
}

// change brings the kernel from what it has to what is wanted of some Services; a nil plan is a Service without rules.
func (t *table) change(ctx context.Context, want map[types.NamespacedName]*plan) error {
	tx := t.nft.NewTransaction()
	d := t.compare(want)
	if d.empty() {
		return nil
	}
	d.write(tx, t.family)
	if err := t.nft.Run(ctx, tx); err != nil {
		t.known = false
		return fmt.Errorf("change %s rules: %w", t.ip, err)
	}
	for name := range d.chains {
		delete(t.stale, name)
	}
	for _, name := range d.gone {
		t.stale[name] = true
	}
	return nil
}

// replace writes everything in one transaction, whatever the kernel has.
func (t *table) replace(ctx context.Context, s surroundings, want map[types.NamespacedName]*plan) error {
	t.known = false
	t.plans, t.claims = map[types.NamespacedName]*plan{}, map[element][]types.NamespacedName{}
	chains, sets, err := t.found(ctx)
	if err != nil {
		return t.rewrite(ctx, s, want, err)
	}
	tx := t.nft.NewTransaction()
	skeleton(tx, s)
	for _, name := range containers() {
		if isSet(name) {
			tx.Flush(&knftables.Set{Name: name})
		} else {
			tx.Flush(&knftables.Map{Name: name})
		}
	}
	d := t.compare(want)
	wanted := map[string]bool{}
	for name := range d.chains {
		wanted[name] = true
	}
	for name := range d.sets {
		wanted[name] = true
	}
	stale := map[string]bool{}
	for _, name := range chains {
		if isOurs(name) && !wanted[name] {
			d.gone = append(d.gone, name)
			stale[name] = true
		}
	}
	for _, name := range sets {
		if isOurs(name) && !wanted[name] {
			d.goneSets = append(d.goneSets, name)
		}
	}
	d.write(tx, t.family)
	if err := t.nft.Run(ctx, tx); err != nil {
		return t.rewrite(ctx, s, want, err)
	}
	t.known, t.stale = true, stale
	return nil
}

// rewrite makes the table anew, for one that cannot be brought up to date because of the error given: another version's,
// say. Who was kept to an endpoint is forgotten; connections stay.
func (t *table) rewrite(ctx context.Context, s surroundings, want map[types.NamespacedName]*plan, because error) error {
	t.plans, t.claims = map[types.NamespacedName]*plan{}, map[element][]types.NamespacedName{}
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	skeleton(tx, s)
	t.compare(want).write(tx, t.family)
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("write %s rules: %w", t.ip, errors.Join(err, because))
	}
	t.known, t.stale = true, map[string]bool{}
	return nil
}

// found are the chains and sets that the kernel has in our table; none where there is no table.
func (t *table) found(ctx context.Context) (chains, sets []string, err error) {
	all, err := t.nft.ListAll(ctx)
	if knftables.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list %s rules: %w", t.ip, err)
	}
	return all["chain"], all["set"], nil
}

// sweep deletes the chains that are stale.
func (t *table) sweep(ctx context.Context) error {
	if len(t.stale) == 0 {
		return nil
	}
	tx := t.nft.NewTransaction()
	for _, name := range slices.Sorted(maps.Keys(t.stale)) {
		tx.Delete(&knftables.Chain{Name: name})
	}
	if err := t.nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete unused %s chains: %w", t.ip, err)
	}
	clear(t.stale)
	return nil
}

// delta is what a transaction has to say.
type delta struct {
	chains   map[string][]string // to be written
	sets     map[string]time.Duration
	remove   []element
	add      []valued
	gone     []string // chains
	goneSets []string
}

type valued struct {
	element
	value string
}

func (d *delta) empty() bool {
	return len(d.chains)+len(d.sets)+len(d.remove)+len(d.add)+len(d.gone)+len(d.goneSets) == 0
}

// compare books the plans, and says what makes the difference.
func (t *table) compare(want map[types.NamespacedName]*plan) *delta {
	d := &delta{chains: map[string][]string{}, sets: map[string]time.Duration{}}
	type before struct {
		value string
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
	for _, name := range names { // before any of them is booked
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
		for chain, rules := range now.chains {
			if was, is := old.chains[chain]; !is || !slices.Equal(was, rules) {
				d.chains[chain] = rules
			}
		}
		for chain := range old.chains {
			if _, still := now.chains[chain]; !still {
				d.gone = append(d.gone, chain)
			}
		}
		for set, timeout := range now.affinity {
			if _, is := old.affinity[set]; !is {
				d.sets[set] = timeout
			}
		}
		for set := range old.affinity {
			if _, still := now.affinity[set]; !still {
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

// or is the plan, or one that has nothing.
func or(p *plan) *plan {
	if p == nil {
		return &plan{}
	}
	return p
}

// effective is an element's value: that of the first who claims it.
func (t *table) effective(e element) (string, bool) {
	by := t.claims[e]
	if len(by) == 0 {
		return "", false
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

// write puts it all into a transaction, each thing after those that it names: chains and sets, rules, elements, and then
// what goes.
func (d *delta) write(tx *knftables.Transaction, f family) {
	chains := slices.Sorted(maps.Keys(d.chains))
	for _, name := range chains {
		tx.Add(&knftables.Chain{Name: name})
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, name := range slices.Sorted(maps.Keys(d.sets)) {
		tx.Add(&knftables.Set{
			Name: name, Type: f.address, Timeout: knftables.PtrTo(d.sets[name]),
			// Without dynamic some kernels add it themselves, and then refuse the set as another one.
			Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag},
		})
	}
	for _, name := range chains {
		for _, rule := range d.chains[name] {
			tx.Add(&knftables.Rule{Chain: name, Rule: rule})
		}
	}
	slices.SortFunc(d.remove, element.compare)
	for _, e := range d.remove {
		tx.Delete(e.object(""))
	}
	slices.SortFunc(d.add, func(a, b valued) int { return a.compare(b.element) })
	for _, e := range d.add {
		tx.Add(e.object(e.value))
	}
	slices.Sort(d.gone)
	for _, name := range d.gone {
		tx.Flush(&knftables.Chain{Name: name})
	}
	slices.Sort(d.goneSets)
	for _, name := range d.goneSets {
		tx.Delete(&knftables.Set{Name: name})
	}
}

func (e element) compare(o element) int {
	if c := strings.Compare(e.container, o.container); c != 0 {
		return c
	}
	return strings.Compare(e.key, o.key)
}

func (e element) object(value string) *knftables.Element {
	out := &knftables.Element{Key: strings.Split(e.key, " . ")}
	if isSet(e.container) {
		out.Set = e.container
		return out
	}
	out.Map = e.container
	if value != "" {
		out.Value = strings.Split(value, " . ")
	}
	return out
}
