// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kube-scheduler/framework"
)

// RunReservePluginsReserve lets the plug-ins reserve what the pod will need on the node.
func (p *Profile) RunReservePluginsReserve(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	for _, x := range p.reserve {
		if s := x.Reserve(ctx, state, pod, node); !s.IsSuccess() {
			if s.IsRejected() {
				return s.WithPlugin(x.Name())
			}
			return framework.AsStatus(fmt.Errorf("running Reserve plugin %q: %w", x.Name(), s.AsError()))
		}
	}
	return nil
}

// RunReservePluginsUnreserve lets all of them go back on it, in the other order, also those that never reserved.
func (p *Profile) RunReservePluginsUnreserve(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) {
	for i := len(p.reserve) - 1; i >= 0; i-- {
		p.reserve[i].Unreserve(ctx, state, pod, node)
	}
}

// MaxWait is the longest that a Permit plug-in may let a pod wait.
const MaxWait = 15 * time.Minute

// RunPermit asks whether the pod may be bound. Wait: it is put among the waiting pods, and [Profile.WaitOnPermit] waits.
func (p *Profile) RunPermit(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	var pending map[string]time.Duration
	for _, x := range p.permit {
		s, wait := x.Permit(ctx, state, pod, node)
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
			return framework.AsStatus(fmt.Errorf("running Permit plugin %q: %w", x.Name(), s.AsError())).WithPlugin(x.Name())
		}
	}
	if pending == nil {
		return nil
	}
	p.waiting.add(pod, pending)
	return framework.NewStatus(framework.Wait, fmt.Sprintf("one or more plugins asked to wait and no plugin rejected pod %q", pod.Name))
}

// WaitOnPermit blocks while the pod waits for a Permit plug-in.
func (p *Profile) WaitOnPermit(ctx context.Context, pod *corev1.Pod) *framework.Status {
	w := p.waiting.get(pod.UID)
	if w == nil {
		return nil
	}
	defer p.waiting.remove(pod.UID)
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

// RunPreBind does what must be done before the pod is bound.
func (p *Profile) RunPreBind(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	for _, x := range p.preBind {
		if _, s := x.PreBindPreFlight(ctx, state, pod, node); s.IsSkip() {
			continue
		} else if !s.IsSuccess() {
			return framework.AsStatus(fmt.Errorf("running PreBindPreFlight %q: %w", x.Name(), s.AsError()))
		}
		if s := x.PreBind(ctx, state, pod, node); !s.IsSuccess() {
			if s.IsRejected() {
				return s.WithPlugin(x.Name())
			}
			return framework.AsStatus(fmt.Errorf("running PreBind plugin %q: %w", x.Name(), s.AsError()))
		}
	}
	return nil
}

// RunBind binds by the first plug-in that takes the pod.
func (p *Profile) RunBind(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	for _, x := range p.bind {
		s := x.Bind(ctx, state, pod, node)
		if s.IsSkip() {
			continue
		}
		if !s.IsSuccess() {
			if s.IsRejected() {
				return s.WithPlugin(x.Name())
			}
			return framework.AsStatus(fmt.Errorf("running Bind plugin %q: %w", x.Name(), s.AsError()))
		}
		return nil
	}
	return framework.NewStatus(framework.Skip, "")
}

// RunPostBind tells the plug-ins that the pod is bound.
func (p *Profile) RunPostBind(ctx context.Context, state framework.CycleState, pod *corev1.Pod, node string) {
	for _, x := range p.postBind {
		x.PostBind(ctx, state, pod, node)
	}
}
