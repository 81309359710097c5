// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package core selects a node for a pod: a snapshot of the nodes and a pod go in, a node or the reasons why there is none
// come out. It does no I/O and reads no clock.
//
// A pod's way: PreFilter plug-ins may narrow the nodes down; the filters are asked about nodes, from where the last search
// ended, until enough feasible ones are found; the scorers rank those; of the best one is drawn.
//
// It is fast because pods made from one template are alike, and a decision changes one node. The core caches the statuses
// and raw scores of node-local plug-ins by the pod's signature and, for each node, the generation at which they were
// computed. For the next such pod all nodes but the changed ones cost a comparison of two numbers. Normalisation, and
// everything else that looks at several nodes, is computed each time, so that the result is the same as without a cache.
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
	// Percentage of nodes to find feasible before the search ends; 0: by the number of nodes, as kube-scheduler does.
	Percentage int32
	// Forget turns keeping off: everything is worked out for every pod.
	Forget bool
	// Rand draws among the best; nil: seeded at random.
	Rand *rand.Rand
}

// Core decides. One goroutine at a time may use it.
type Core struct {
	options Options
	next    int // where the next search begins
	kept    map[string]*verdicts
	clock   uint64 // counts decisions, to tell which verdicts were used last
	table   profile.ScoreTable
	found   []fwk.NodeInfo // memory of the last search
	slots   []int
	last    *search  // what the last decision was made of, for who wants to know
	columns []string // of its scores
}

// New makes a core.
func New(o Options) *Core {
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return &Core{options: o, kept: map[string]*verdicts{}}
}

// Decision is where the pod goes.
type Decision struct {
	Node      string
	Evaluated int
	Feasible  int
}

// Schedule decides. The error is [ErrNoNodes], a [*FitError], or what a plug-in failed with. The pod's signature may be nil.
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

// draw picks one of the highest at random, each with equal chance.
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

// enough is how many feasible nodes end the search.
func (q *search) enough(nodes int) int {
	const least = 100
	if q.profile.Scorers() == 0 && !slices.ContainsFunc(q.profile.Extenders(), ranksOrFilters) {
		return min(1, nodes) // one is as good as another
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
	absent   *fwk.Status // of nodes that were not asked about
	message  string      // of PreFilter
	narrowed sets.Set[string]
	pre      *fwk.Status
	extended bool // extenders left nodes out
	scored   bool
	drawn    int // index of the node that was drawn, if they were scored
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
			// What went wrong there says nothing about the other nodes.
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

// ask puts one node among the feasible or the rejected.
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

// verdict is what the filters say of a node, asked now or kept.
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

// after is the verdict of a node that pods are nominated to which come before this one. It is kept where it depends on nothing but the
// node, them and the pod's signature.
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

// Raw and Keep give the scorers what was kept for the pod's signature.
func (q *search) Raw(scorer int, scores []int64, missing []int) []int {
	v, generations := q.kept, q.snapshot.Generations()
	for i, slot := range q.slots {
		// Behind nominated pods a node is feasible by another verdict than this one, so the generation is compared here too.
		if v.generation[slot] == generations[slot] && v.scored[slot]&(1<<scorer) != 0 {
			scores[i] = v.scores[slot*v.scorers+scorer]
		} else {
			missing = append(missing, i)
		}
	}
	return missing
}

// Keep remembers a raw score.
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
		if r.status != last { // kept statuses of like nodes are often one
			e.note(r.status)
			last = r.status
		}
	}
	return e
}

// String tells the core's state, for traces.
func (c *Core) String() string {
	return fmt.Sprintf("next search at %d, %d signatures kept", c.next, len(c.kept))
}
