// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package core selects a node for a pod: given a snapshot of the nodes and a pod, it returns a node, or the reasons why none fits. It does
// no I/O and reads no clock.
//
// The steps: PreFilter plug-ins may narrow the nodes down; the core runs the filters on nodes, starting where the last search ended, until
// it has found enough feasible ones; the scorers rank these; the core draws one of the best.
//
// It is fast because pods made from one template are alike, and a decision changes one node. The core caches the statuses and raw scores of
// node-local plug-ins by the pod's signature and, for each node, the generation at which it computed them. For the next such pod, every
// unchanged node costs a comparison of two numbers. The core computes normalisation, and everything else that depends on several nodes,
// each time, so that the result is the same as without a cache.
package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// ErrNoNodes is returned when there is no node at all.
var ErrNoNodes = errors.New("no nodes available to schedule pods")

// Options are a core's settings.
type Options struct {
	// Percentage of nodes to find feasible before the search ends; 0: depends on the number of nodes, as in kube-scheduler.
	Percentage int32
	// Forget disables the cache: the core computes everything for every pod.
	Forget bool
	// Rand draws among the best; nil: seeded at random.
	Rand *rand.Rand
}

// Core makes decisions. Only one goroutine at a time may use it.
type Core struct {
	options Options
	next    int // where the next search begins
	kept    map[string]*verdicts
	clock   uint64 // counts decisions, to find the least recently used verdicts
	table   profile.ScoreTable
	found   []fwk.NodeInfo // reused from the last search
	slots   []int
	last    *search  // the last decision's search, for Account
	columns []string // the names of its scores
}

// New returns a core.
func New(o Options) *Core {
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return &Core{options: o, kept: map[string]*verdicts{}}
}

// Decision is the selected node.
type Decision struct {
	Node      string
	Evaluated int
	Feasible  int
}

// Schedule selects a node. The error is [ErrNoNodes], a [*FitError], or a plug-in's error. The pod's signature may be nil.
func (c *Core) Schedule(ctx context.Context, p *profile.Profile, s *cache.Snapshot, state fwk.CycleState, pod *corev1.Pod,
	signature fwk.PodSignature) (Decision, error) {
	nodes := s.Nodes()
	if len(nodes) == 0 {
		return Decision{}, ErrNoNodes
	}
	q := &search{core: c, profile: p, snapshot: s, state: state, pod: pod, kept: c.verdicts(p, s, signature)}
	c.last = q
	q.nominated = p.AnyNominated()
	for _, e := range p.Extenders() {
		if e.IsInterested(pod) {
			q.extenders = append(q.extenders, e)
		}
	}
	if err := q.run(ctx); err != nil {
		return Decision{}, err
	}
	d := Decision{Evaluated: len(q.feasible) + len(q.rejected), Feasible: len(q.feasible)}
	switch len(q.feasible) {
	case 0:
		return d, q.failure()
	case 1:
		d.Node = q.feasible[0].Node().Name
		return d, nil
	}
	if p.Scorers() > 0 || len(q.extenders) > 0 {
		if st := p.RunPreScorePlugins(ctx, state, pod, q.feasible); !st.IsSuccess() {
			return d, st.AsError()
		}
	}
	var kept profile.RawScores
	if q.kept != nil {
		kept = q
	}
	if st := p.Score(ctx, state, pod, q.feasible, kept, &c.table); !st.IsSuccess() {
		return d, st.AsError()
	}
	if len(q.extenders) > 0 {
		q.prioritize(c.table.Total)
	}
	q.scored, q.drawn = true, c.draw(c.table.Total)
	d.Node = q.feasible[q.drawn].Node().Name
	return d, nil
}

// draw picks one of the highest scores at random, each with equal chance.
func (c *Core) draw(scores []int64) int {
	best, ties := 0, 1
	for i := 1; i < len(scores); i++ {
		switch {
		case scores[i] > scores[best]:
			best, ties = i, 1
		case scores[i] == scores[best]:
			if ties++; c.options.Rand.IntN(ties) == 0 {
				best = i
			}
		}
	}
	return best
}

// enough returns how many feasible nodes end the search.
func (q *search) enough(nodes int) int {
	const least = 100
	if q.profile.Scorers() == 0 && !slices.ContainsFunc(q.profile.Extenders(), ranksOrFilters) {
		return min(1, nodes) // without scoring, the first feasible node will do
	}
	if nodes < least {
		return nodes
	}
	percentage := int(q.core.options.Percentage)
	if own := q.profile.Percentage(); own != nil {
		percentage = int(*own)
	}
	if percentage == 0 {
		percentage = max(50-nodes/125, 5)
	}
	return min(max(nodes*percentage/100, least), nodes)
}

// search is the state of one decision.
type search struct {
	core      *Core
	profile   *profile.Profile
	snapshot  *cache.Snapshot
	state     fwk.CycleState
	pod       *corev1.Pod
	kept      *verdicts
	nominated bool
	extenders []fwk.Extender // that are interested in the pod

	feasible []fwk.NodeInfo
	slots    []int // of feasible
	rejected []rejection
	absent   *fwk.Status // the status of nodes that were not examined
	message  string      // from PreFilter
	narrowed sets.Set[string]
	pre      *fwk.Status
	extended bool // extenders have rejected nodes
	scored   bool
	drawn    int // index of the selected node, if the nodes were scored
}

type rejection struct {
	slot   int
	status *fwk.Status
}

func (q *search) run(ctx context.Context) (err error) {
	nodes := q.snapshot.Nodes()
	result, st, narrowed := q.profile.RunPreFilter(ctx, q.state, q.pod, nodes)
	if !st.IsSuccess() {
		if !st.IsRejected() {
			return st.AsError()
		}
		q.absent, q.message, q.pre, q.narrowed = st, st.Message(), st, narrowed
		return nil
	}
	q.narrowed = narrowed
	began := q.profile.Meter().Began()
	defer func() { q.profile.Filtered(began, err) }()
	others := q.profile.OtherFilters(q.state)
	if name := q.pod.Status.NominatedNodeName; name != "" {
		if slot, ok := q.snapshot.Slot(name); ok {
			err := q.ask(ctx, slot, others)
			if err == nil {
				err = q.extend()
			}
			if err == nil && len(q.feasible) > 0 {
				return nil
			}
			// An error with the nominated node says nothing about the others: start again with all nodes.
			q.feasible, q.slots, q.rejected, q.extended = q.feasible[:0], q.slots[:0], q.rejected[:0], false
		}
	}
	if !result.AllNodes() {
		q.absent = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(narrowed)))
		if err := q.askNamed(ctx, result.NodeNames, others); err != nil {
			return err
		}
		return q.extend()
	}
	q.absent = fwk.NewStatus(fwk.UnschedulableAndUnresolvable)
	enough := q.enough(len(nodes))
	if cap(q.core.found) < enough {
		q.core.found, q.core.slots = make([]fwk.NodeInfo, enough), make([]int, enough)
	}
	q.feasible, q.slots = q.core.found[:0], q.core.slots[:0]
	asked := 0
	for slot := q.core.next % len(nodes); asked < len(nodes) && len(q.feasible) < enough; asked++ {
		if err := q.ask(ctx, slot, others); err != nil {
			return err
		}
		if slot++; slot == len(nodes) {
			slot = 0
		}
	}
	q.core.next = (q.core.next + asked) % len(nodes)
	return q.extend()
}

func (q *search) askNamed(ctx context.Context, names sets.Set[string], others []int) error {
	for _, name := range sets.List(names) {
		if slot, ok := q.snapshot.Slot(name); ok {
			if err := q.ask(ctx, slot, others); err != nil {
				return err
			}
		}
	}
	return nil
}

// ask adds one node to the feasible or the rejected nodes.
func (q *search) ask(ctx context.Context, slot int, others []int) error {
	node := q.snapshot.Nodes()[slot]
	st := q.verdict(ctx, slot, node, others)
	if st.IsSuccess() {
		q.feasible = append(q.feasible, node)
		q.slots = append(q.slots, slot)
		return nil
	}
	if st.Code() == fwk.Error {
		return st.AsError()
	}
	q.rejected = append(q.rejected, rejection{slot, st})
	return nil
}

// verdict returns the filters' verdict about a node, computed now or cached.
func (q *search) verdict(ctx context.Context, slot int, node fwk.NodeInfo, others []int) *fwk.Status {
	if q.nominated {
		pods, version := q.profile.Nominations(node.Node().Name, q.pod)
		if ahead := profile.Ahead(pods, q.pod); len(ahead) > 0 {
			return q.after(ctx, ahead, version, slot, node, others)
		}
	}
	if q.kept == nil {
		return q.profile.RunFilterPlugins(ctx, q.state, q.pod, node)
	}
	generation, st := q.snapshot.Generations()[slot], (*fwk.Status)(nil)
	if q.kept.generation[slot] == generation {
		st = q.kept.status[slot]
	} else {
		st = q.profile.RunLocalFilters(ctx, q.state, q.pod, node)
		if st.Code() != fwk.Error {
			q.kept.set(slot, generation, st)
		}
	}
	if len(others) > 0 && st.IsSuccess() {
		st = q.profile.RunOtherFilters(ctx, others, q.state, q.pod, node)
	}
	return st
}

// after returns the verdict about a node to which pods with at least this pod's priority are nominated. It caches a verdict that depends on
// nothing but the node, those pods and the pod's signature.
func (q *search) after(ctx context.Context, ahead []fwk.PodInfo, version uint64, slot int, node fwk.NodeInfo, others []int) *fwk.Status {
	if q.kept == nil || version == 0 || len(others) > 0 {
		return q.profile.RunFiltersAfter(ctx, ahead, q.state, q.pod, node)
	}
	of := nominations{q.snapshot.Generations()[slot], version, corev1helpers.PodPriority(q.pod)}
	if st, ok := q.kept.after(slot, of); ok {
		return st
	}
	st := q.profile.RunFiltersAfter(ctx, ahead, q.state, q.pod, node)
	if st.Code() != fwk.Error {
		q.kept.setAfter(slot, of, st)
	}
	return st
}

// Raw and Keep read and write the scorers' cached scores for the pod's signature.
func (q *search) Raw(scorer int, scores []int64, missing []int) []int {
	v, generations := q.kept, q.snapshot.Generations()
	for i, slot := range q.slots {
		// A node with nominated pods is feasible by another verdict than this one, so compare the generation here too.
		if v.generation[slot] == generations[slot] && v.scored[slot]&(1<<scorer) != 0 {
			scores[i] = v.scores[slot*v.scorers+scorer]
		} else {
			missing = append(missing, i)
		}
	}
	return missing
}

// Keep caches a raw score.
func (q *search) Keep(node, scorer int, score int64) {
	slot := q.slots[node]
	if q.kept.generation[slot] == q.snapshot.Generations()[slot] {
		q.kept.setScore(slot, scorer, score)
	}
}

func (q *search) failure() *FitError {
	e := &FitError{
		Pod: q.pod, Nodes: len(q.snapshot.Nodes()), PreFilterMessage: q.message,
		Statuses:             &Statuses{snapshot: q.snapshot, rejected: q.rejected, absent: q.absent},
		UnschedulablePlugins: sets.New[string](), PendingPlugins: sets.New[string](),
	}
	e.UnschedulablePlugins = e.UnschedulablePlugins.Union(q.narrowed)
	if q.extended {
		e.UnschedulablePlugins.Insert(profile.ExtenderName)
	}
	if q.pre != nil {
		e.note(q.pre)
	}
	var last *fwk.Status
	for _, r := range q.rejected {
		if r.status != last { // equal cached statuses often share a pointer
			e.note(r.status)
			last = r.status
		}
	}
	return e
}

// String describes the core's state, for traces.
func (c *Core) String() string {
	return fmt.Sprintf("next search at %d, %d signatures kept", c.next, len(c.kept))
}
