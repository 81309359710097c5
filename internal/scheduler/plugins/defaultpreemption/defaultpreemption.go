// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package defaultpreemption is the DefaultPreemption plug-in: for a pod that fits nowhere it looks for a node where it would
// fit without some pods of lower priority, ends those, and nominates the pod to the node.
//
// On each node all pods of lower priority are taken away for the sake of argument; if the pod fits then, as many as possible
// are put back, those whose disruption budget would suffer first, then the most important first. The rest are the victims.
// Of the nodes the one is taken with the fewest budgets hurt, the least important victims, the fewest of them, and then the
// youngest. Nodes whose refusal no preemption resolves are not looked at.
//
// A pod that has preempted others waits for them: as long as one of its victims is on its nominated node, it preempts no
// others. The plug-in remembers victims (ended.go), since it takes a moment until the API shows their deletion. It deletes
// them concurrently with the scheduling of other pods (evict.go).
package defaultpreemption

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	policylisters "k8s.io/client-go/listers/policy/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// Name is the plug-in's name.
const Name = "DefaultPreemption"

// New makes the plug-in.
func New(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, err := config.ArgsFor[*configv1.DefaultPreemptionArgs](Name, args)
	if err != nil {
		return nil, err
	}
	p := &plugin{handle: h, percentage: int(*a.MinCandidateNodesPercentage), absolute: int(*a.MinCandidateNodesAbsolute)}
	if m, ok := h.(interface{ Metrics() *metrics.Metrics }); ok {
		p.metrics = m.Metrics()
	}
	if f := h.SharedInformerFactory(); f != nil {
		p.budgets = f.Policy().V1().PodDisruptionBudgets().Lister()
		p.pods = f.Core().V1().Pods().Lister()
	}
	return p, nil
}

type plugin struct {
	handle  fwk.Handle
	budgets policylisters.PodDisruptionBudgetLister // nil: there are none
	lower   podcount.Counter
	metrics *metrics.Metrics      // nil: nothing is measured
	pods    corelisters.PodLister // nil: there are none
	next    int                   // where the next search begins
	asked   asked                 // for pods like the last
	running sync.WaitGroup        // that end victims

	mu     sync.Mutex
	ended  map[types.UID]ended       // by the pod that was to have the room
	ending map[types.UID]*corev1.Pod // by the pod whose victims are being ended: the last of them, if only that is left

	percentage, absolute int // of so many nodes with victims, at least, the best is taken
}

func (*plugin) Name() string { return Name }

// PreEnqueue holds a pod back while its victims are being ended.
func (p *plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if p.held(pod.UID) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "waiting for the preemption for this pod to be finished") // upstream's words
	}
	return nil
}

// EventsToRegister is the end of pods, which is when one that is held back is looked at again. Whether it helps is for those to say that
// rejected the pod.
func (*plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{
		Event:          fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete},
		QueueingHintFn: func(klog.Logger, *corev1.Pod, any, any) (fwk.QueueingHint, error) { return fwk.QueueSkip, nil },
	}}, nil
}

// Close returns when no victim is being ended any more, which those that do see from the scheduler's context.
func (p *plugin) Close() error {
	p.running.Wait()
	return nil
}

// candidate is a node with those of its pods that would have to go.
type candidate struct {
	node    fwk.NodeInfo
	victims []*corev1.Pod // most important first
	hurt    int           // budgets that would suffer
}

// PostFilter makes room, or says why there is none to make.
func (p *plugin) PostFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod,
	statuses fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	defer p.metrics.Preempted()
	nodes, err := p.handle.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if why := p.ineligible(pod, statuses); why != "" {
		return nil, fwk.NewStatus(fwk.Unschedulable, "preemption: "+why)
	}
	best, reasons, err := p.search(ctx, state, pod, nodes, statuses)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	if best == nil && reasons == nil { // extenders left none
		return nil, fwk.NewStatus(fwk.Unschedulable, "preemption: no candidate node for preemption") // upstream's words
	}
	if best == nil {
		none := &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride}
		return &fwk.PostFilterResult{NominatingInfo: none}, fwk.NewStatus(fwk.Unschedulable, "preemption: "+summary(len(nodes), reasons))
	}
	p.metrics.Ended(len(best.victims))
	p.remember(pod.UID, best.node.Node().Name, best.victims)
	p.evict(ctx, pod, best)
	state.Write(profile.VictimsKey, profile.Victims(best.victims))
	name := best.node.Node().Name
	return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: name}},
		fwk.NewStatus(fwk.Success, fmt.Sprintf("preemption: found a potential placement for pod on node %v, preempting %d victims", name,
			len(best.victims)))
}

// ineligible says why the pod may not preempt now: it must never, or victims of its last preemption are still going.
func (p *plugin) ineligible(pod *corev1.Pod, statuses fwk.NodeToStatusReader) string {
	if pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return "not eligible due to preemptionPolicy=Never."
	}
	name := pod.Status.NominatedNodeName
	if name == "" || statuses.Get(name).Code() == fwk.UnschedulableAndUnresolvable {
		p.forget(pod.UID)
		return ""
	}
	if p.going(pod.UID, name) {
		return "not eligible due to a terminating pod on the nominated node."
	}
	node, err := p.handle.SnapshotSharedLister().NodeInfos().Get(name)
	if err != nil {
		return ""
	}
	for _, other := range node.GetPods() {
		if corev1helpers.PodPriority(other.GetPod()) < corev1helpers.PodPriority(pod) && beingPreempted(other.GetPod()) {
			return "not eligible due to a terminating pod on the nominated node."
		}
	}
	return ""
}

func beingPreempted(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp != nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler
	})
}

// search returns the best candidate, or how many nodes there were of each reason.
func (p *plugin) search(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo,
	statuses fwk.NodeToStatusReader) (*candidate, map[string]int, error) {
	priority := corev1helpers.PodPriority(pod)
	lower := p.lower.Count(podcount.NewList(nodes, p.handle.SnapshotSharedLister()), fmt.Sprint(priority),
		func(o *corev1.Pod) bool { return corev1helpers.PodPriority(o) < priority })
	var budgets []*policyv1.PodDisruptionBudget
	if p.budgets != nil {
		var err error
		if budgets, err = p.budgets.List(labels.Everything()); err != nil {
			return nil, nil, fmt.Errorf("list disruption budgets: %w", err)
		}
	}
	p.asked.begin(ctx, p.handle, state, pod, len(nodes), len(budgets) > 0)
	reasons := map[string]int{}
	var found []*candidate
	enough, spared := max(p.absolute, len(nodes)*p.percentage/100), false
	for i := range nodes {
		k := (p.next + i) % len(nodes)
		n := nodes[k]
		switch {
		case statuses.Get(n.Node().Name).Code() != fwk.Unschedulable:
			reasons["Preemption is not helpful for scheduling"]++
			continue
		case lower[k] == 0:
			reasons["No preemption victims found for incoming pod"]++
			continue
		}
		c, st, err := p.asked.of(pod, n, func() (*candidate, *fwk.Status, error) {
			return p.victims(ctx, state.Clone(), pod, n.Snapshot(), budgets)
		})
		if err != nil {
			return nil, nil, err
		}
		if c == nil {
			for _, r := range st.Reasons() {
				reasons[r]++
			}
			continue
		}
		spared = spared || c.hurt == 0
		if found = append(found, c); len(found) >= enough && spared { // a node that hurts no budget is worth looking for
			p.next = (k + 1) % len(nodes)
			break
		}
	}
	if len(found) == 0 {
		return nil, reasons, nil
	}
	if found, err := p.askExtenders(pod, found); err != nil {
		return nil, nil, err
	} else if len(found) > 0 {
		return slices.MinFunc(found, compare), nil, nil
	}
	return nil, nil, nil
}

func summary(nodes int, reasons map[string]int) string {
	parts := make([]string, 0, len(reasons))
	for r, n := range reasons {
		parts = append(parts, fmt.Sprintf("%v %v", n, r))
	}
	slices.Sort(parts)
	return fmt.Sprintf("0/%v nodes are available: %v.", nodes, strings.Join(parts, ", "))
}

// victims finds the pods to evict from a node, which it may change; nil and a status if preemption does not help.
func (p *plugin) victims(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo,
	budgets []*policyv1.PodDisruptionBudget) (*candidate, *fwk.Status, error) {
	var lower []fwk.PodInfo
	for _, o := range node.GetPods() {
		if corev1helpers.PodPriority(o.GetPod()) < corev1helpers.PodPriority(pod) {
			lower = append(lower, o)
		}
	}
	for _, o := range lower {
		if err := p.take(ctx, state, pod, o, node); err != nil {
			return nil, nil, err
		}
	}
	if st := p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node); !st.IsSuccess() {
		return nil, st, nil
	}
	slices.SortFunc(lower, func(a, b fwk.PodInfo) int { return importance(a.GetPod(), b.GetPod()) })
	c := &candidate{}
	protected, free := split(lower, budgets)
	for i, group := range [][]fwk.PodInfo{protected, free} {
		for _, o := range group {
			node.AddPodInfo(o)
			if st := p.handle.RunPreFilterExtensionAddPod(ctx, state, pod, o, node); !st.IsSuccess() {
				return nil, nil, st.AsError()
			}
			if p.handle.RunFilterPluginsWithNominatedPods(ctx, state, pod, node).IsSuccess() {
				continue
			}
			if err := p.take(ctx, state, pod, o, node); err != nil {
				return nil, nil, err
			}
			c.victims = append(c.victims, o.GetPod())
			if i == 0 {
				c.hurt++
			}
		}
	}
	slices.SortFunc(c.victims, importance)
	return c, nil, nil
}

func (p *plugin) take(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, o fwk.PodInfo, node fwk.NodeInfo) error {
	if err := node.RemovePod(klog.Logger{}, o.GetPod()); err != nil {
		return err
	}
	return p.handle.RunPreFilterExtensionRemovePod(ctx, state, pod, o, node).AsError()
}

// importance orders pods: higher priority first, then those that run longest.
func importance(a, b *corev1.Pod) int {
	if x, y := corev1helpers.PodPriority(a), corev1helpers.PodPriority(b); x != y {
		if x > y {
			return -1
		}
		return 1
	}
	return started(a).Compare(started(b))
}

func started(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// split parts the pods whose going would hurt a budget from the others, keeping their order.
func split(pods []fwk.PodInfo, budgets []*policyv1.PodDisruptionBudget) (protected, free []fwk.PodInfo) {
	left := make([]int32, len(budgets))
	for i, b := range budgets {
		left[i] = b.Status.DisruptionsAllowed
	}
	for _, o := range pods {
		pod, hurts := o.GetPod(), false
		for i, b := range budgets {
			if len(pod.Labels) == 0 || b.Namespace != pod.Namespace || !selects(b, pod) {
				continue
			}
			if _, known := b.Status.DisruptedPods[pod.Name]; known {
				continue // counted already
			}
			left[i]--
			hurts = hurts || left[i] < 0
		}
		if hurts {
			protected = append(protected, o)
		} else {
			free = append(free, o)
		}
	}
	return protected, free
}

// compare orders candidates, best first.
func compare(a, b *candidate) int {
	sum := func(c *candidate) (n int64) {
		for _, v := range c.victims {
			n += int64(corev1helpers.PodPriority(v)) + 1<<31 // so that few with low priority weigh less than many
		}
		return n
	}
	top := func(c *candidate) int64 {
		if len(c.victims) == 0 {
			return -1 << 31
		}
		return int64(corev1helpers.PodPriority(c.victims[0]))
	}
	for _, x := range [...][2]int64{
		{int64(a.hurt), int64(b.hurt)}, {top(a), top(b)}, {sum(a), sum(b)}, {int64(len(a.victims)), int64(len(b.victims))},
	} {
		if x[0] != x[1] {
			if x[0] < x[1] {
				return -1
			}
			return 1
		}
	}
	return earliest(b).Compare(earliest(a)) // the later, the better
}

// earliest is when the first of the most important victims began.
func earliest(c *candidate) (t time.Time) {
	for i, v := range c.victims {
		if corev1helpers.PodPriority(v) != corev1helpers.PodPriority(c.victims[0]) {
			break
		}
		if s := started(v); i == 0 || s.Before(t) {
			t = s
		}
	}
	return t
}
