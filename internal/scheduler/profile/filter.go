// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// RunPreFilter runs the PreFilter plug-ins. It returns the nodes that they leave (nil: all), the refusal, and which plug-ins
// narrowed the nodes down. After a refusal that preemption may resolve the others are asked too, since PostFilter plug-ins
// need what they find out; of several such refusals the last counts.
func (p *Profile) RunPreFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	nodes []framework.NodeInfo) (_ *framework.PreFilterResult, st *framework.Status, _ sets.Set[string]) {
	defer func(began time.Time) { p.meter.Passed(metrics.PreFilter, st, began) }(p.meter.Began())
	sampled := p.meter.Samples(state)
	var result *framework.PreFilterResult
	var refusal *framework.Status
	var skip, narrowed sets.Set[string]
	defer func() { state.SetSkipFilterPlugins(skip) }()
	for i, x := range p.preFilter {
		began := metrics.Begin(sampled)
		r, s := x.PreFilter(ctx, state, pod, nodes)
		p.meter.Ran(x.Name(), metrics.PreFilter, s, began)
		if !s.IsSkip() {
			p.asked.preFilter[i].Add(1)
		}
		switch {
		case s.IsSuccess():
		case s.IsSkip():
			if skip == nil {
				skip = sets.New[string]()
			}
			skip.Insert(x.Name())
			continue
		case s.Code() == framework.UnschedulableAndUnresolvable:
			return nil, s.WithPlugin(x.Name()), nil
		case s.Code() == framework.Unschedulable:
			refusal = s.WithPlugin(x.Name())
			continue
		default:
			return nil, failure(x, s, "running PreFilter plugin %q: %w").WithPlugin(x.Name()), nil
		}
		if r.AllNodes() {
			continue
		}
		if narrowed == nil {
			narrowed = sets.New[string]()
		}
		narrowed.Insert(x.Name())
		result = result.Merge(r)
		if len(result.NodeNames) == 0 {
			msg := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", sets.List(narrowed))
			if len(narrowed) == 1 {
				msg = fmt.Sprintf("node(s) didn't satisfy plugin %v", sets.List(narrowed)[0])
			}
			return result, framework.NewStatus(framework.UnschedulableAndUnresolvable, msg), narrowed
		}
	}
	return result, refusal, narrowed
}

// RunFilterPlugins asks all filters about a node; the first refusal is the answer.
func (p *Profile) RunFilterPlugins(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	return p.runFilters(ctx, 0, len(p.filter), state, pod, node)
}

// RunLocalFilters asks the node-local filters alone.
func (p *Profile) RunLocalFilters(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	return p.runFilters(ctx, 0, p.localCount, state, pod, node)
}

// OtherFilters are the filters after the node-local ones that concern this pod.
func (p *Profile) OtherFilters(state framework.CycleState) (concerned []int) {
	skip := state.GetSkipFilterPlugins()
	for i := p.localCount; i < len(p.filter); i++ {
		if !skip.Has(p.filter[i].Name()) {
			concerned = append(concerned, i)
		}
	}
	return concerned
}

// RunOtherFilters asks those.
func (p *Profile) RunOtherFilters(ctx context.Context, concerned []int, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	sampled := p.meter.SamplesNode(state)
	for _, i := range concerned {
		if s := p.runFilter(ctx, i, sampled, state, pod, node); s != nil {
			return s
		}
	}
	return nil
}

// runFilters asks the filters from one index up to another.
func (p *Profile) runFilters(ctx context.Context, from, to int, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	skip, sampled := state.GetSkipFilterPlugins(), p.meter.SamplesNode(state)
	for i := from; i < to; i++ {
		if len(skip) > 0 && skip.Has(p.filter[i].Name()) {
			continue
		}
		if s := p.runFilter(ctx, i, sampled, state, pod, node); s != nil {
			return s
		}
	}
	return nil
}

// runFilter asks one; nil: the node is good.
func (p *Profile) runFilter(ctx context.Context, i int, sampled bool, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	x := p.filter[i]
	p.asked.filter[i].Add(1)
	began := metrics.Begin(sampled)
	s := x.Filter(ctx, state, pod, node)
	p.meter.Ran(x.Name(), metrics.Filter, s, began)
	switch {
	case s.IsSuccess():
		return nil
	case !s.IsRejected():
		return failure(x, s, "running %q filter plugin: %w").WithPlugin(x.Name())
	case s.Plugin() != x.Name():
		s.SetPlugin(x.Name())
	}
	return s
}

// RunFilterPluginsWithNominatedPods asks the filters twice where pods of equal or higher priority are nominated to the
// node: with them on it and, since they may never come, without.
func (p *Profile) RunFilterPluginsWithNominatedPods(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	return p.RunFiltersAfter(ctx, Ahead(p.NominatedPodsForNode(node.Node().Name), pod), state, pod, node)
}

// Ahead are those of the pods nominated to a node that come before a pod: the others of equal or higher priority. They are shared and
// read-only: mostly it is all of them.
func Ahead(nominated []framework.PodInfo, pod *corev1.Pod) []framework.PodInfo {
	after := func(n framework.PodInfo) bool {
		return corev1helpers.PodPriority(n.GetPod()) < corev1helpers.PodPriority(pod) || n.GetPod().UID == pod.UID
	}
	if !slices.ContainsFunc(nominated, after) {
		return nominated
	}
	return slices.DeleteFunc(slices.Clone(nominated), after)
}

// RunFiltersAfter asks the filters with those on the node that are ahead of the pod, if there are any, and without.
func (p *Profile) RunFiltersAfter(ctx context.Context, ahead []framework.PodInfo, state framework.CycleState, pod *corev1.Pod,
	node framework.NodeInfo) *framework.Status {
	if len(ahead) > 0 {
		with, st := node.Snapshot(), state.Clone()
		for _, n := range ahead {
			with.AddPodInfo(n)
			if s := p.RunPreFilterExtensionAddPod(ctx, st, pod, n, with); !s.IsSuccess() {
				return framework.AsStatus(s.AsError())
			}
		}
		if s := p.RunFilterPlugins(ctx, st, pod, with); !s.IsSuccess() {
			return s
		}
	}
	return p.RunFilterPlugins(ctx, state, pod, node)
}

// RunPreFilterExtensionAddPod tells the PreFilter plug-ins of a pod that is put on a node for the sake of argument.
func (p *Profile) RunPreFilterExtensionAddPod(ctx context.Context, state framework.CycleState, pod *corev1.Pod, added framework.PodInfo,
	node framework.NodeInfo) *framework.Status {
	return p.extend(state, "AddPod", func(e framework.PreFilterExtensions) *framework.Status {
		return e.AddPod(ctx, state, pod, added, node)
	})
}

// RunPreFilterExtensionRemovePod tells them of one taken away.
func (p *Profile) RunPreFilterExtensionRemovePod(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	removed framework.PodInfo, node framework.NodeInfo) *framework.Status {
	return p.extend(state, "RemovePod", func(e framework.PreFilterExtensions) *framework.Status {
		return e.RemovePod(ctx, state, pod, removed, node)
	})
}

func (p *Profile) extend(state framework.CycleState, what string,
	call func(framework.PreFilterExtensions) *framework.Status) *framework.Status {
	for _, x := range p.preFilter {
		e := x.PreFilterExtensions()
		if e == nil || state.GetSkipFilterPlugins().Has(x.Name()) {
			continue
		}
		if s := call(e); !s.IsSuccess() {
			return failure(x, s, "running "+what+" on PreFilter plugin %q: %w")
		}
	}
	return nil
}

// Filtered measures the search for feasible nodes, which began then.
func (p *Profile) Filtered(began time.Time, err error) {
	p.meter.Passed(metrics.Filter, framework.AsStatus(err), began)
}

// HasPostFilter says whether any plug-in can make room.
func (p *Profile) HasPostFilter() bool { return len(p.postFilter) > 0 }

// RunPostFilter asks for a way to make room; the first that finds one wins.
func (p *Profile) RunPostFilter(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	statuses framework.NodeToStatusReader) (_ *framework.PostFilterResult, st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.PostFilter, st, began) }(p.meter.Began())
	sampled := p.meter.Samples(state)
	if state.ShouldSkipAllPostFilterPlugins() {
		return nil, framework.NewStatus(framework.Unschedulable, "All PostFilter plugins are skipped") // upstream's words
	}
	var result *framework.PostFilterResult
	var reasons []string
	var rejector string
	for _, x := range p.postFilter {
		began := metrics.Begin(sampled)
		r, s := x.PostFilter(ctx, state, pod, statuses)
		p.meter.Ran(x.Name(), metrics.PostFilter, s, began)
		switch {
		case s.IsSuccess():
			return r, s
		case s.Code() == framework.UnschedulableAndUnresolvable:
			return r, s.WithPlugin(x.Name())
		case !s.IsRejected():
			return nil, framework.AsStatus(fault(s)).WithPlugin(x.Name())
		}
		if r != nil && r.Mode() != framework.ModeNoop {
			result = r
		}
		reasons = append(reasons, s.Reasons()...)
		if rejector == "" {
			rejector = x.Name()
		}
	}
	return result, framework.NewStatus(framework.Unschedulable, reasons...).WithPlugin(rejector)
}

// AnyNominated says whether any pod is nominated to any node.
func (p *Profile) AnyNominated() bool {
	if n, ok := p.clients.Nominator.(interface{ AnyNominated() bool }); ok {
		return n.AnyNominated()
	}
	return p.clients.Nominator != nil
}
