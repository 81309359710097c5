// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// ipTables is a rulebook of iptables: our own chains in the iptables tables. There are no maps. An element is a rule in the chain of its
// container. An element for an address is in a chain for the last byte of its address, to which that chain leads: so a packet passes a
// 256th of all addresses, and a change of one element rewrites as many. That is little compared with the rest of the table: see the
// package's comment.
type ipTables struct {
	family
	x      XTables
	around surroundings
	// listed are the elements by the chain that contains their rules. An element may have rules in two chains.
	listed map[chainKey]map[element]verdict
}

// chainKey is the name of a chain with its table.
type chainKey struct{ table, chain string }

func newIPTables(f family, x XTables) *ipTables { return &ipTables{family: f, x: x} }

func (t *ipTables) mapped() bool { return false }

// Most ports have few endpoints, which need few rules. More rules would slow down packets to other addresses.
func (t *ipTables) plain() int { return 4 }

// The transaction that no longer uses a chain deletes it.
func (t *ipTables) unswept() bool               { return false }
func (t *ipTables) sweep(context.Context) error { return nil }

// replace lists the existing rules, writes everything, and deletes the rest.
func (t *ipTables) replace(ctx context.Context, s surroundings, d *delta) error {
	saved, err := t.x.Save(ctx)
	if err != nil {
		return err
	}
	t.around, t.listed = s, map[chainKey]map[element]verdict{}
	text := newRestored()
	t.list(d)
	for p := range t.listed {
		text.write(p, t.rulesAt(p))
	}
	for p, rules := range skeletonChains(s) {
		text.write(p, rules)
	}
	for _, p := range roots() {
		text.write(p, t.rulesAt(p))
	}
	t.own(text, d)
	found := netfilter.Find(saved, isIPTablesChain)
	for table, f := range found {
		for _, name := range f.Chains {
			if p := (chainKey{table, name}); !text.has(p) {
				text.delete(p)
			}
		}
	}
	for table, hooks := range ipTablesHooks() {
		text.hooks[table] = found[table].Hook(hooks...)
	}
	return t.x.Restore(ctx, text.String())
}

// change writes the chains that have changed.
func (t *ipTables) change(ctx context.Context, d *delta) error {
	text := newRestored()
	changed, rooted := t.list(d)
	for p := range changed {
		if len(t.listed[p]) == 0 && isBucket(p.chain) {
			delete(t.listed, p)
			text.delete(p)
		} else {
			text.write(p, t.rulesAt(p))
		}
	}
	for p := range rooted {
		text.write(p, t.rulesAt(p))
	}
	t.own(text, d)
	for table, present := range map[string]string{"filter": refuseChain, "mangle": firewalls.chain, "nat": markChain} {
		if text.touches(table) { // it fails if another program has deleted the chains
			text.write(chainKey{table, canaryChain}, []string{"-j " + present})
		}
	}
	return t.x.Restore(ctx, text.String())
}

// own writes the chains of Services.
func (t *ipTables) own(text *restored, d *delta) {
	for c, rules := range d.chains {
		var out []string
		for _, r := range rules {
			out = append(out, r.iptables(c.of)...)
		}
		text.write(chainKey{c.table(), c.iptables()}, out)
	}
	for _, c := range d.gone {
		text.delete(chainKey{c.table(), c.iptables()})
	}
}

// list applies a delta to listed. It returns the chains whose rules have changed, and the chains whose jumps to those have changed.
func (t *ipTables) list(d *delta) (changed, rooted map[chainKey]bool) {
	changed, rooted = map[chainKey]bool{}, map[chainKey]bool{}
	note := func(root, at chainKey, is bool) {
		changed[at] = true
		if root != at && is != (len(t.listed[at]) > 0) {
			rooted[root] = true
		}
	}
	for _, e := range d.remove {
		for _, root := range t.rootsOf(e) {
			at := e.under(root)
			was := len(t.listed[at]) > 0
			delete(t.listed[at], e)
			note(root, at, was)
		}
	}
	for _, v := range d.add {
		for _, root := range t.rootsOf(v.element) {
			at := v.under(root)
			was := len(t.listed[at]) > 0
			if !was {
				t.listed[at] = map[element]verdict{}
			}
			t.listed[at][v.element] = v.verdict
			note(root, at, was)
		}
	}
	return changed, rooted
}

// rulesAt returns the rules of a chain that consists of elements, or of jumps to such chains.
func (t *ipTables) rulesAt(p chainKey) []string {
	out := t.around.head(p)
	if !isBucket(p.chain) {
		for i := range 256 {
			if b := (chainKey{p.table, bucketName(p.chain, byte(i))}); len(t.listed[b]) > 0 {
				out = append(out, "-d "+t.byLastByte(byte(i))+" -j "+b.chain)
			}
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(t.listed[p]), element.before) {
		out = append(out, t.rulesOf(p, e, t.listed[p][e])...)
	}
	return append(out, t.around.tail(p)...)
}

// byLastByte matches addresses by their last byte.
func (t *ipTables) byLastByte(b byte) string {
	if t.v6 {
		return fmt.Sprintf("::%x/::ff", b)
	}
	return fmt.Sprintf("0.0.0.%d/0.0.0.255", b)
}

// restored builds a text for iptables-restore.
type restored struct {
	chains map[chainKey][]string
	gone   map[chainKey]bool
	hooks  map[string][]string // the jumps to our chains, by table
}

func newRestored() *restored {
	return &restored{chains: map[chainKey][]string{}, gone: map[chainKey]bool{}, hooks: map[string][]string{}}
}

func (r *restored) write(p chainKey, rules []string) { r.chains[p] = rules }
func (r *restored) delete(p chainKey)                { r.gone[p] = true }

func (r *restored) has(p chainKey) bool {
	_, is := r.chains[p]
	return is
}

func (r *restored) touches(table string) bool {
	for _, all := range []iter.Seq[chainKey]{maps.Keys(r.chains), maps.Keys(r.gone)} {
		for range where(all, func(p chainKey) bool { return p.table == table }) {
			return true
		}
	}
	return false
}

// String returns the text. Within a table it flushes all chains before it adds rules, so that no rule uses a chain that is deleted. The
// filter table comes first, which the kernel evaluates last.
func (r *restored) String() string {
	var out strings.Builder
	byName := func(a, b chainKey) int { return strings.Compare(a.chain, b.chain) }
	for _, table := range []string{"filter", "mangle", "nat"} {
		in := func(p chainKey) bool { return p.table == table }
		chains := slices.SortedFunc(where(maps.Keys(r.chains), in), byName)
		gone := slices.SortedFunc(where(maps.Keys(r.gone), in), byName)
		if len(chains)+len(gone)+len(r.hooks[table]) == 0 {
			continue
		}
		out.WriteString("*" + table + "\n")
		for _, p := range slices.Concat(chains, gone) {
			out.WriteString(":" + p.chain + " - [0:0]\n")
		}
		for _, p := range chains {
			for _, rule := range r.chains[p] {
				out.WriteString("-A ")
				out.WriteString(p.chain)
				out.WriteString(" ")
				out.WriteString(rule)
				out.WriteString("\n")
			}
		}
		for _, line := range r.hooks[table] {
			out.WriteString(line + "\n")
		}
		for _, p := range gone {
			out.WriteString("-X " + p.chain + "\n")
		}
		out.WriteString("COMMIT\n")
	}
	return out.String()
}
