// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package noderesources has two plug-ins about requests of pods and capacity of nodes. NodeResourcesFit ([NewFit]): a pod
// fits if its requests are still free, and scores by what remains. NodeResourcesBalancedAllocation ([NewBalanced]): a node
// scores higher if the pod brings the shares of cpu and memory in use closer together.
//
// Worked example: a node of 4 cores and 8 GiB, half its cores and a quarter of its memory requested, and a pod of 1 core
// and 2 GiB. Least allocated: (100·(4-3)/4 + 100·(8-4)/8)/2 = (25+50)/2 = 37. Balanced: the shares are 0.75 and 0.5 with
// the pod, 0.5 and 0.25 without, deviating by 0.125 both times, so the pod neither helps nor harms: 50 + 50/2 = 75.
//
// An extended resource that a node does not have may be backed by a DeviceClass (KEP-5004): these two then accept the node
// (devices.go), and score it by its devices (stock.go).
package noderesources

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// FitName is the first plug-in's name.
const FitName = "NodeResourcesFit"

const requestKey fwk.StateKey = "PreFilter" + FitName

// NewFit returns NodeResourcesFit; without arguments, with the LeastAllocated strategy over cpu and memory, equally weighted.
func NewFit(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, err := config.ArgsFor[*configv1.NodeResourcesFitArgs](FitName, args)
	if err != nil {
		return nil, err
	}
	f := fit{ignored: sets.New(a.IgnoredResources...), ignoredGroups: sets.New(a.IgnoredResourceGroups...), devices: h.SharedDRAManager()}
	if s := a.ScoringStrategy; s.Type != configv1.LeastAllocated || !usual(s.Resources) {
		f.weighed, f.score = &weighed{resources: s.Resources, defaults: true, stock: newStock(f.devices, s.Resources)}, strategyOf(s)
		if f.stock != nil {
			return fitByDevices{f}, nil
		}
	}
	return f, nil
}

type fit struct {
	ignored, ignoredGroups sets.Set[string]
	*weighed                        // nil: cpu and memory
	score                  strategy // nil: the default
	devices                fwk.SharedDRAManager
}

func (fit) Name() string { return FitName }

// NodeLocal promises that verdicts may be cached.
func (fit) NodeLocal() {}

// request is a pod's requests, and the same with defaults for containers without requests.
type request struct {
	exact            *nodeinfo.Resource
	cpu, memory      int64 // exact
	scoreCPU, scoreM int64 // with defaults
	sight            sight
}

func (r *request) Clone() fwk.StateData { return r }

func requestOf(pod *corev1.Pod) *request {
	exact, cpu, memory := nodeinfo.Requests(pod)
	return &request{exact: exact, cpu: exact.MilliCPU, memory: exact.Memory, scoreCPU: cpu, scoreM: memory}
}

func readRequest(state fwk.CycleState, pod *corev1.Pod) *request {
	if v, err := state.Read(requestKey); err == nil {
		if r, ok := v.(*request); ok {
			return r
		}
	}
	r := requestOf(pod)
	state.Write(requestKey, r)
	return r
}

// SignPod signs the requests.
func (fit) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	r := requestOf(pod)
	return []fwk.SignFragment{{Key: fwk.ResourcesSignerName, Value: []any{r.exact, r.scoreCPU, r.scoreM}}}, nil
}

// EventsToRegister registers the deletion or shrinking of a pod, and new or larger nodes.
func (f fit) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, QueueingHintFn: f.afterDelete},
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.UpdatePodScaleDown}, QueueingHintFn: f.afterScaleDown},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodScaleDown}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeAllocatable}, QueueingHintFn: f.afterNode},
		{Event: fwk.ClusterEvent{Resource: fwk.DeviceClass, ActionType: fwk.Add | fwk.Update}, QueueingHintFn: afterClass},
	}, nil
}

func (fit) afterDelete(_ klog.Logger, _ *corev1.Pod, oldObj, _ any) (fwk.QueueingHint, error) {
	if gone, ok := oldObj.(*corev1.Pod); ok && gone.Spec.NodeName == "" && gone.Status.NominatedNodeName == "" {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

func (fit) afterScaleDown(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	old, ok := oldObj.(*corev1.Pod)
	now, ok2 := newObj.(*corev1.Pod)
	if !ok || !ok2 {
		return fwk.Queue, nil
	}
	if now.Spec.NodeName == "" {
		return fwk.QueueSkip, nil
	}
	before, _, _ := nodeinfo.Requests(old)
	after, _, _ := nodeinfo.Requests(now)
	for name, q := range resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}) {
		if !q.IsZero() && amount(before, name) > amount(after, name) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

func (f fit) afterNode(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	node, ok := newObj.(*corev1.Node)
	if !ok {
		return fwk.Queue, nil
	}
	r := requestOf(pod)
	if reasons, _ := f.insufficient(r, nodeinfo.New(node, nil)); len(reasons) > 0 {
		return fwk.QueueSkip, nil
	}
	old, ok := oldObj.(*corev1.Node)
	if !ok || old == nil {
		return fwk.Queue, nil
	}
	before, after := nodeinfo.NewResource(old.Status.Allocatable), nodeinfo.NewResource(node.Status.Allocatable)
	if after.AllowedPodNumber > before.AllowedPodNumber {
		return fwk.Queue, nil
	}
	for _, name := range r.names() {
		if amount(after, name) > amount(before, name) || f.leaves(name, after) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

func amount(r *nodeinfo.Resource, name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceCPU:
		return r.MilliCPU
	case corev1.ResourceMemory:
		return r.Memory
	case corev1.ResourceEphemeralStorage:
		return r.EphemeralStorage
	}
	return r.Scalar[name]
}

// names returns the requested resources: cpu, memory, storage, then the rest by name.
func (r *request) names() (out []corev1.ResourceName) {
	if r.exact.MilliCPU > 0 {
		out = append(out, corev1.ResourceCPU)
	}
	if r.exact.Memory > 0 {
		out = append(out, corev1.ResourceMemory)
	}
	if r.exact.EphemeralStorage > 0 {
		out = append(out, corev1.ResourceEphemeralStorage)
	}
	from := len(out)
	for name, n := range r.exact.Scalar {
		if n > 0 {
			out = append(out, name)
		}
	}
	slices.Sort(out[from:])
	return out
}

// PreFilter adds the requests up.
func (fit) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	state.Write(requestKey, requestOf(pod))
	return nil, nil
}

// PreFilterExtensions returns nil: the node's own sums are enough.
func (fit) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects nodes with too little left, and names the resources. Preemption cannot resolve a request that exceeds the whole node.
func (f fit) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	reasons, hopeless := f.insufficient(readRequest(state, pod), node)
	if len(reasons) == 0 {
		return nil
	}
	code := fwk.Unschedulable
	if hopeless {
		code = fwk.UnschedulableAndUnresolvable
	}
	return fwk.NewStatus(code, reasons...)
}

func (f fit) insufficient(r *request, node fwk.NodeInfo) (reasons []string, hopeless bool) {
	has, used := node.GetAllocatable(), node.GetRequested()
	if len(node.GetPods())+1 > has.GetAllowedPodNumber() {
		reasons = append(reasons, "Too many pods")
	}
	check := func(name corev1.ResourceName, want, capacity, taken int64) {
		if want > 0 && want > capacity-taken {
			reasons = append(reasons, fmt.Sprintf("Insufficient %v", name))
			hopeless = hopeless || want > capacity
		}
	}
	check(corev1.ResourceCPU, r.cpu, has.GetMilliCPU(), used.GetMilliCPU())
	check(corev1.ResourceMemory, r.memory, has.GetMemory(), used.GetMemory())
	check(corev1.ResourceEphemeralStorage, r.exact.EphemeralStorage, has.GetEphemeralStorage(), used.GetEphemeralStorage())
	if len(r.exact.Scalar) > 0 {
		for _, name := range r.names() {
			if nodeinfo.IsScalar(name) && !f.ignores(name) && !f.leaves(name, has) {
				check(name, r.exact.Scalar[name], has.GetScalarResources()[name], used.GetScalarResources()[name])
			}
		}
	}
	return reasons, hopeless
}

// ignores reports whether the plug-in ignores the resource. It can ignore only extended ones.
func (f fit) ignores(name corev1.ResourceName) bool {
	if len(f.ignored)+len(f.ignoredGroups) == 0 {
		return false
	}
	group, _, extended := strings.Cut(string(name), "/")
	if !extended || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix) {
		return false
	}
	return f.ignored.Has(string(name)) || f.ignoredGroups.Has(group)
}

// Score is the mean free share of cpu and memory, unless another strategy is configured.
func (f fit) Score(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	r := readRequest(state, pod)
	if f.score != nil {
		all, err := f.shares(ctx, r, node)
		if err != nil {
			return 0, fwk.AsStatus(err)
		}
		return f.score(all), nil
	}
	has, used := node.GetAllocatable(), node.GetNonZeroRequested()
	var sum, n int64
	for _, x := range [...][2]int64{
		{used.GetMilliCPU() + r.scoreCPU, has.GetMilliCPU()},
		{used.GetMemory() + r.scoreM, has.GetMemory()},
	} {
		requested, capacity := x[0], x[1]
		if capacity == 0 {
			continue
		}
		if requested <= capacity {
			sum += (capacity - requested) * fwk.MaxNodeScore / capacity
		}
		n++
	}
	if n == 0 {
		return 0, nil
	}
	return sum / n, nil
}

// ScoreExtensions returns nil: the score is in range already.
func (fit) ScoreExtensions() fwk.ScoreExtensions { return nil }
