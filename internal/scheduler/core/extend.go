// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"math"
	"sync"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

func ranksOrFilters(e fwk.Extender) bool { return e.IsFilter() || e.IsPrioritizer() }

// extend asks the extenders, one after the other, which of the feasible nodes remain.
func (q *search) extend() error {
	before := len(q.feasible)
	for _, e := range q.extenders {
		if len(q.feasible) == 0 {
			break
		}
		if !e.IsFilter() {
			continue
		}
		left, failed, unresolvable, err := e.Filter(q.pod, q.feasible)
		if err != nil {
			if e.IsIgnorable() {
				continue
			}
			return err
		}
		q.refuse(unresolvable, nil, fwk.UnschedulableAndUnresolvable)
		q.refuse(failed, unresolvable, fwk.Unschedulable)
		q.feasible, q.slots = q.feasible[:0:0], q.slots[:0:0] // the extender may have kept the old slices
		for _, n := range left {
			if slot, ok := q.snapshot.Slot(n.Node().Name); ok {
				q.feasible, q.slots = append(q.feasible, q.snapshot.Nodes()[slot]), append(q.slots, slot)
			}
		}
	}
	q.extended = q.extended || len(q.feasible) != before
	return nil
}

// refuse records why nodes failed, except for nodes that failed for a better reason.
func (q *search) refuse(failed, better extenderv1.FailedNodesMap, code fwk.Code) {
	if len(failed) == 0 {
		return
	}
	at := make(map[int]int, len(q.rejected))
	for i, r := range q.rejected {
		at[r.slot] = i
	}
	for name, why := range failed {
		slot, there := q.snapshot.Slot(name)
		if _, ok := better[name]; ok || !there {
			continue
		}
		r := rejection{slot, fwk.NewStatus(code, why)}
		if i, ok := at[slot]; ok {
			q.rejected[i] = r
			continue
		}
		at[slot] = len(q.rejected)
		q.rejected = append(q.rejected, r)
	}
}

// prioritize adds the extenders' scores; it asks all extenders concurrently, and ignores one that fails. Extenders' scores are 0 to 10,
// plug-ins' 0 to 100.
func (q *search) prioritize(totals []int64) {
	scores := make([]map[string]int64, len(q.extenders))
	var asked sync.WaitGroup
	for i, e := range q.extenders {
		if !e.IsPrioritizer() {
			continue
		}
		asked.Go(func() {
			list, weight, err := e.Prioritize(q.pod, q.feasible)
			if err != nil || list == nil {
				return
			}
			scores[i] = make(map[string]int64, len(*list))
			for _, h := range *list {
				scores[i][h.Host] = plus(scores[i][h.Host], times(h.Score, weight*(fwk.MaxNodeScore/extenderv1.MaxExtenderPriority)))
			}
		})
	}
	asked.Wait()
	for k, n := range q.feasible {
		for i := range scores {
			totals[k] = plus(totals[k], scores[i][n.Node().Name])
		}
	}
}

// plus and times saturate: an extender may return any number.
func plus(a, b int64) int64 {
	switch c := a + b; {
	case a > 0 && b > 0 && c < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && c >= 0:
		return math.MinInt64
	default:
		return c
	}
}

func times(a, b int64) int64 {
	if a == 0 || b == 0 {
		return 0
	}
	c := a * b
	if c/b == a && !(a == -1 && b == math.MinInt64) && !(b == -1 && a == math.MinInt64) {
		return c
	}
	if (a < 0) == (b < 0) {
		return math.MaxInt64
	}
	return math.MinInt64
}
