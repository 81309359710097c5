// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// RunReservePluginsReserve runs the Reserve plug-ins for the pod and node.
func (p *Profile) RunReservePluginsReserve(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	node string) (st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.Reserve, st, began) }(p.meter.Began())
	sampled := p.meter.Samples(state)
	for _, x := range p.reserve {
		began := metrics.Begin(sampled)
		s := x.Reserve(ctx, state, pod, node)
		p.meter.Ran(x.Name(), metrics.Reserve, s, began)
		if !s.IsSuccess() {
			if s.IsRejected() {
				return s.WithPlugin(x.Name())
			}
			return failure(x, s, "running Reserve plugin %q: %w")
		}
	}
	return nil
}

// RunReservePluginsUnreserve runs Unreserve of all of them, in reverse order, also of those whose Reserve did not run.
func (p *Profile) RunReservePluginsUnreserve(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) {
	defer func(began time.Time) { p.meter.Passed(metrics.Unreserve, nil, began) }(p.meter.Began())
	for i := len(p.reserve) - 1; i >= 0; i-- {
		p.reserve[i].Unreserve(ctx, state, pod, node)
	}
}

// MaxWait is the longest that a Permit plug-in may let a pod wait.
const MaxWait = 15 * time.Minute

// RunPermit runs the Permit plug-ins. With the status Wait, it adds the pod to the waiting pods, and [Profile.WaitOnPermit] waits.
func (p *Profile) RunPermit(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) (st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.Permit, st, began) }(p.meter.Began())
	var pending map[string]time.Duration
	sampled := p.meter.Samples(state)
	for _, x := range p.permit {
		began := metrics.Begin(sampled)
		s, wait := x.Permit(ctx, state, pod, node)
		p.meter.Ran(x.Name(), metrics.Permit, s, began)
		switch {
		case s.IsSuccess():
		case s.IsRejected():
			return s.WithPlugin(x.Name())
		case s.IsWait():
			if pending == nil {
				pending = map[string]time.Duration{}
			}
			pending[x.Name()] = min(wait, MaxWait)
		default:
			return failure(x, s, "running Permit plugin %q: %w").WithPlugin(x.Name())
		}
	}
	if pending == nil {
		return nil
	}
	p.clients.Waiting.add(pod, pending)
	return framework.NewStatus(framework.Wait, "one or more plugins asked to wait and no plugin rejected pod") // upstream's words
}

// failure is the error for a plug-in's status that is neither success nor a rejection.
func failure(x framework.Plugin, s *framework.Status, format string) *framework.Status {
	return framework.AsStatus(fmt.Errorf(format, x.Name(), fault(s)))
}

// fault returns the error in a status. Wait and Skip are valid statuses elsewhere, but errors here.
func fault(s *framework.Status) error {
	if err := s.AsError(); err != nil {
		return err
	}
	return fmt.Errorf("unexpected status %v", s.Code())
}

// Waits reports whether the pod waits for a Permit plug-in.
func (p *Profile) Waits(pod *corev1.Pod) bool { return p.clients.Waiting.get(pod.UID) != nil }

// WaitOnPermit blocks while the pod waits for a Permit plug-in.
func (p *Profile) WaitOnPermit(ctx context.Context, pod *corev1.Pod) (st *framework.Status) {
	w := p.clients.Waiting.get(pod.UID)
	if w == nil {
		return nil
	}
	defer func(began time.Time) { p.meter.Waited(st, began) }(p.meter.Began())
	defer p.clients.Waiting.remove(pod.UID)
	select {
	case s := <-w.verdict:
		if s.IsSuccess() || s.IsRejected() {
			return s
		}
		return framework.AsStatus(fmt.Errorf("waiting on permit for pod: %w", s.AsError())).WithPlugin(s.Plugin())
	case <-ctx.Done():
		return framework.AsStatus(ctx.Err())
	}
}

// RunPreBindPreFlights asks the plug-ins whether PreBind has anything to do; the status is Skip if not.
func (p *Profile) RunPreBindPreFlights(ctx context.Context, state framework.CycleState, pod *corev1.Pod,
	node string) (st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.PreBindPreFlight, st, began) }(p.meter.Began())
	skip, parallel, work := sets.New[string](), sets.New[string](), false
	for _, x := range p.preBind {
		result, s := x.PreBindPreFlight(ctx, state, pod, node)
		if result != nil && result.AllowParallel {
			parallel.Insert(x.Name())
		}
		switch {
		case s.IsSuccess():
			work = true
		case s.IsSkip():
			skip.Insert(x.Name())
		case s.IsError():
			return failure(x, s, "running PreBindPreFlight %q: %w")
		default:
			// upstream's words
			return framework.AsStatus(fmt.Errorf(
				"PreBindPreFlight %s returned %q, which is unsupported. It is supposed to return Success, Skip, or Error status", x.Name(), s.Code()))
		}
	}
	state.SetSkipPreBindPlugins(skip)
	state.SetParallelPreBindPlugins(parallel)
	if !work {
		return framework.NewStatus(framework.Skip)
	}
	return nil
}

// RunPreBind runs the PreBind plug-ins: neighbours that allow it concurrently, the others in order. The first failure cancels the others.
func (p *Profile) RunPreBind(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) (st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.PreBind, st, began) }(p.meter.Began())
	sampled := p.meter.Samples(state)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	for _, group := range p.preBindGroups(state) {
		var first *framework.Status
		var failed sync.Once
		run := func(x framework.PreBindPlugin) {
			began := metrics.Begin(sampled)
			s := preBind(ctx, x, state, pod, node)
			p.meter.Ran(x.Name(), metrics.PreBind, s, began)
			if !s.IsSuccess() {
				failed.Do(func() {
					first = s
					cancel(errors.New("some other PreBind operation failed")) // upstream's words
				})
			}
		}
		var others sync.WaitGroup
		for _, x := range group[1:] {
			others.Go(func() { run(x) })
		}
		run(group[0])
		others.Wait()
		if first != nil {
			return first
		}
	}
	return nil
}

// preBindGroups returns the plug-ins with work to do, grouped by those that run concurrently.
func (p *Profile) preBindGroups(state framework.CycleState) (groups [][]framework.PreBindPlugin) {
	skip, parallel := state.GetSkipPreBindPlugins(), state.GetParallelPreBindPlugins()
	open := false // whether the last group accepts another plug-in
	for _, x := range p.preBind {
		if !parallel.Has(x.Name()) {
			open = false
		}
		switch {
		case skip.Has(x.Name()):
		case open:
			groups[len(groups)-1] = append(groups[len(groups)-1], x)
		default:
			groups = append(groups, []framework.PreBindPlugin{x})
			open = parallel.Has(x.Name())
		}
	}
	return groups
}

func preBind(ctx context.Context, x framework.PreBindPlugin, state framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	s := x.PreBind(ctx, state, pod, node)
	switch {
	case s.IsSuccess():
		return nil
	case s.IsRejected():
		return s.WithPlugin(x.Name())
	case errors.Is(s.AsError(), context.Canceled) && context.Cause(ctx) != nil:
		return framework.AsStatus(fmt.Errorf("running PreBind plugin %q: %w", x.Name(), context.Cause(ctx)))
	}
	return failure(x, s, "running PreBind plugin %q: %w")
}

// RunBind binds the pod with the first plug-in that handles it.
func (p *Profile) RunBind(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) (st *framework.Status) {
	defer func(began time.Time) { p.meter.Passed(metrics.Bind, st, began) }(p.meter.Began())
	sampled := p.meter.Samples(state)
	for _, x := range p.bind {
		began := metrics.Begin(sampled)
		s := x.Bind(ctx, state, pod, node)
		p.meter.Ran(x.Name(), metrics.Bind, s, began)
		switch {
		case s.IsSkip():
		case s.IsSuccess():
			return nil
		case s.IsRejected():
			return s.WithPlugin(x.Name())
		default:
			return failure(x, s, "running Bind plugin %q: %w")
		}
	}
	return framework.AsStatus(errors.New("all Bind plugins skipped the pod"))
}

// RunPostBind runs the PostBind plug-ins.
func (p *Profile) RunPostBind(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) {
	defer func(began time.Time) { p.meter.Passed(metrics.PostBind, nil, began) }(p.meter.Began())
	sampled := p.meter.Samples(state)
	for _, x := range p.postBind {
		began := metrics.Begin(sampled)
		x.PostBind(ctx, state, pod, node)
		p.meter.Ran(x.Name(), metrics.PostBind, nil, began)
	}
}
