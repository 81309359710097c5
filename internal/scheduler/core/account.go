// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// Bounds of an account.
const (
	mostReasons = 16
	mostNamed   = 5 // nodes that share a reason
	mostScored  = 3 // nodes with their scores
)

// Account summarizes a decision: counts of reasons, a few names, the scores of the best few nodes. It does not refer to the snapshot.
type Account struct {
	Nodes, Evaluated, Feasible int
	Filtered                   []Filtered
	Columns                    []string // the scorers' names, shared by decisions with the same ones
	Scores                     []Scores
}

// Filtered are the nodes that one plug-in rejected for one reason.
type Filtered struct {
	Plugin, Reason string
	Count          int
	Nodes          []string // the first few
}

// Scores are one node's scores, one for each column.
type Scores struct {
	Node          string
	Total         int64
	Raw, Weighted []int64
}

// OtherReasons stands for the reasons beyond the bound.
const OtherReasons = "(other reasons)"

// Account returns the account of the last decision. Call it before the next decision; it computes only sums.
func (c *Core) Account() (a Account) {
	q := c.last
	if q == nil {
		return a
	}
	c.last = nil
	a.Nodes, a.Evaluated, a.Feasible = len(q.snapshot.Nodes()), len(q.feasible)+len(q.rejected), len(q.feasible)
	a.Filtered = q.filtered()
	if q.scored {
		a.Columns, a.Scores = c.best(q)
	}
	return a
}

// filtered counts the refusals by plug-in and reason. Equal cached refusals share one pointer, so that comparing pointers finds most of
// them.
func (q *search) filtered() (out []Filtered) {
	nodes := q.snapshot.Nodes()
	var known [8]struct {
		status *fwk.Status
		at     int // index in out of its only reason
	}
	used := 0
next:
	for i := range q.rejected {
		r := &q.rejected[i]
		for k := range known[:used] {
			if known[k].status == r.status {
				out[known[k].at].add(nodes, r.slot)
				continue next
			}
		}
		reasons := r.status.Reasons()
		if len(reasons) == 0 {
			reasons = []string{r.status.Code().String()}
		}
		at := 0
		for _, reason := range reasons {
			out, at = counted(out, r.status.Plugin(), reason)
			out[at].add(nodes, r.slot)
		}
		if len(reasons) == 1 {
			known[used%len(known)].status, known[used%len(known)].at = r.status, at
			used = min(used+1, len(known))
		}
	}
	if left := len(nodes) - len(q.rejected) - len(q.feasible); left > 0 && q.absent != nil && (q.pre != nil || len(q.narrowed) > 0) {
		f := Filtered{Reason: q.absent.Message(), Count: left, Plugin: q.absent.Plugin()}
		if f.Plugin == "" && len(q.narrowed) == 1 {
			f.Plugin = sets.List(q.narrowed)[0]
		}
		out = append(out, f)
	}
	slices.SortStableFunc(out, func(a, b Filtered) int { return b.Count - a.Count })
	return out
}

func (f *Filtered) add(nodes []fwk.NodeInfo, slot int) {
	if f.Count++; len(f.Nodes) < mostNamed {
		if f.Nodes == nil {
			f.Nodes = make([]string, 0, mostNamed)
		}
		f.Nodes = append(f.Nodes, nodes[slot].Node().Name)
	}
}

// counted finds or adds the entry for a reason.
func counted(in []Filtered, plugin, reason string) ([]Filtered, int) {
	for i := range in {
		if in[i].Reason == reason && in[i].Plugin == plugin {
			return in, i
		}
	}
	if in == nil {
		in = make([]Filtered, 0, 4)
	}
	if len(in) < mostReasons {
		return append(in, Filtered{Plugin: plugin, Reason: reason}), len(in)
	}
	if in[len(in)-1].Reason != OtherReasons {
		in = append(in, Filtered{Reason: OtherReasons})
	}
	return in, len(in) - 1
}

// best returns the scores of the best few nodes, the selected one first.
func (c *Core) best(q *search) ([]string, []Scores) {
	totals := c.table.Total
	top := make([]int, 1, mostScored+1)
	top[0] = q.drawn
	for i := range totals {
		if i == q.drawn || len(top) == mostScored && totals[i] <= totals[top[len(top)-1]] {
			continue
		}
		k := len(top)
		for k > 1 && totals[i] > totals[top[k-1]] {
			k--
		}
		if top = slices.Insert(top, k, i); len(top) > mostScored {
			top = top[:mostScored]
		}
	}
	columns := c.table.Columns
	if !slices.EqualFunc(c.columns, columns, func(name string, col profile.ScoreColumn) bool { return name == col.Plugin }) {
		c.columns = make([]string, len(columns))
		for i := range columns {
			c.columns[i] = columns[i].Plugin
		}
	}
	numbers := make([]int64, 2*len(columns)*len(top))
	out := make([]Scores, len(top))
	for k, i := range top {
		raw, weighted := numbers[:len(columns):len(columns)], numbers[len(columns):2*len(columns):2*len(columns)]
		numbers = numbers[2*len(columns):]
		for j := range columns {
			raw[j], weighted[j] = columns[j].Raw[i], columns[j].Weighted[i]
		}
		out[k] = Scores{Node: q.feasible[i].Node().Name, Total: totals[i], Raw: raw, Weighted: weighted}
	}
	return c.columns, out
}
