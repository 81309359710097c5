// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"sigs.k8s.io/knftables"
)

// nftTable is a rulebook of nftables: a table in the kernel.
type nftTable struct {
	family
	nft knftables.Interface
	// stale chains are empty and unused. A kernel before 6.2 cannot delete them until a while after the last reference was removed.
	stale map[string]bool
}

func newNFTTable(f family, nft knftables.Interface) *nftTable {
	return &nftTable{family: f, nft: nft, stale: map[string]bool{}}
}

func (t *nftTable) mapped() bool { return true }
func (t *nftTable) plain() int   { return longest }

// change is one transaction.
func (t *nftTable) change(ctx context.Context, d *delta) error {
	tx := t.nft.NewTransaction()
	w := t.write(tx, d, nil, nil)
	if err := t.nft.Run(ctx, tx); err != nil {
		return err
	}
	for _, name := range w {
		delete(t.stale, name)
	}
	for _, c := range d.gone {
		t.stale[c.nft()] = true
	}
	return nil
}

// replace writes everything in one transaction, so that every packet meets either the old or the new rules.
func (t *nftTable) replace(ctx context.Context, s surroundings, d *delta) error {
	chains, sets, err := t.found(ctx)
	if err != nil {
		return t.rewrite(ctx, s, d, err)
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
	wanted := map[string]bool{}
	for c := range d.chains {
		wanted[c.nft()] = true
	}
	for _, k := range d.sets {
		wanted[k.nft()] = true
	}
	unwanted := func(name string) bool { return !isOurs(name) || wanted[name] }
	gone, goneSets := slices.DeleteFunc(chains, unwanted), slices.DeleteFunc(sets, unwanted)
	t.write(tx, d, gone, goneSets)
	if err := t.nft.Run(ctx, tx); err != nil {
		return t.rewrite(ctx, s, d, err)
	}
	clear(t.stale)
	for _, name := range gone {
		t.stale[name] = true
	}
	return nil
}

// rewrite deletes and creates the table, if the given error shows that it cannot be updated: it may be another version's. Session affinity
// is lost; connections stay.
func (t *nftTable) rewrite(ctx context.Context, s surroundings, d *delta, because error) error {
	tx := t.nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	skeleton(tx, s)
	t.write(tx, d, nil, nil)
	if err := t.nft.Run(ctx, tx); err != nil {
		return errors.Join(err, because)
	}
	clear(t.stale)
	return nil
}

// found returns the existing chains and sets of our table; none if there is no table.
func (t *nftTable) found(ctx context.Context) (chains, sets []string, err error) {
	all, err := t.nft.ListAll(ctx)
	if knftables.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("list rules: %w", err)
	}
	return all["chain"], all["set"], nil
}

func (t *nftTable) unswept() bool { return len(t.stale) > 0 }

// sweep deletes the chains that are stale.
func (t *nftTable) sweep(ctx context.Context) error {
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

// write adds a delta to a transaction in the order of references: chains and sets, rules, elements, and then deletions. It returns the
// names of the chains that it writes.
func (t *nftTable) write(tx *knftables.Transaction, d *delta, gone, goneSets []string) []string {
	rules := make(map[string][]rule, len(d.chains))
	for c, r := range d.chains {
		rules[c.nft()] = r
	}
	chains := slices.Sorted(maps.Keys(rules))
	for _, name := range chains {
		tx.Add(&knftables.Chain{Name: name})
		tx.Flush(&knftables.Chain{Name: name})
	}
	slices.SortFunc(d.sets, keep.compare)
	for _, k := range d.sets {
		tx.Add(&knftables.Set{
			Name: k.nft(), Type: t.addressType(), Timeout: knftables.PtrTo(k.time),
			// Without the flag dynamic some kernels add it themselves, and later reject the set because it differs.
			Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag},
		})
	}
	for _, name := range chains {
		for _, r := range rules[name] {
			for _, text := range r.nft(t.family) {
				tx.Add(&knftables.Rule{Chain: name, Rule: text})
			}
		}
	}
	slices.SortFunc(d.remove, element.compare)
	for _, e := range d.remove {
		tx.Delete(e.object(verdict{}))
	}
	slices.SortFunc(d.add, func(a, b valued) int { return a.compare(b.element) })
	for _, e := range d.add {
		tx.Add(e.object(e.verdict))
	}
	for _, c := range d.gone {
		gone = append(gone, c.nft())
	}
	slices.Sort(gone)
	for _, name := range gone {
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, k := range d.goneSets {
		goneSets = append(goneSets, k.nft())
	}
	slices.Sort(goneSets)
	for _, name := range goneSets {
		tx.Delete(&knftables.Set{Name: name})
	}
	return chains
}

func (e element) object(v verdict) *knftables.Element {
	out := &knftables.Element{Key: e.keys()}
	switch {
	case isSet(e.container):
		out.Set = e.container
		return out
	case v.chainKey.IsValid():
		out.Value = []string{v.chainKey.Addr().String(), strconv.Itoa(int(v.chainKey.Port()))}
	case v.do != 0:
		out.Value = []string{v.nft()}
	}
	out.Map = e.container
	return out
}
