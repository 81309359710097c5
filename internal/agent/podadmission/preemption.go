// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podadmission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// victims are the pods that must end so that a critical pod can run.
type victims struct {
	pods   []*corev1.Pod
	signal corev1.ResourceName // the first resource that the node lacks
}

// preempt ends the victims and waits for their end.
func (m *Manager) preempt(ctx context.Context, v *victims) error {
	if v == nil {
		return nil
	}
	const message = "Preempted in order to admit critical pod"
	for _, pod := range v.pods {
		m.Events.Event(pod, corev1.EventTypeWarning, "Preempting", message)
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
			grace = *own
		}
		m.Killer.KillPod(pod.UID, podspec.End{
			Reason: "Preempting", Message: message, Grace: grace,
			Disruption: "Pod was preempted by Kubelet to accommodate a critical pod.",
		})
		m.Metrics.preemptions.WithLabelValues(string(v.signal)).Inc()
	}
	return m.Killer.AwaitEnd(ctx, v.pods)
}

// selectVictims selects the pods to preempt for a critical pod: as few as possible of the guaranteed ones, then of the burstable ones, then
// of the best-effort ones.
func selectVictims(pod *corev1.Pod, others []*corev1.Pod, refusals []refusal) (*victims, []refusal) {
	var need shortages
	for _, r := range refusals {
		need = append(need, r.short)
	}
	others = slices.DeleteFunc(slices.Clone(others), func(other *corev1.Pod) bool { return !preemptable(pod, other) })
	slices.SortStableFunc(others, func(a, b *corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	of := func(class corev1.PodQOSClass) []*corev1.Pod {
		return slices.DeleteFunc(slices.Clone(others), func(p *corev1.Pod) bool { return podstatus.QOS(p) != class })
	}
	bestEffort, burstable, guaranteed := of(corev1.PodQOSBestEffort), of(corev1.PodQOSBurstable), of(corev1.PodQOSGuaranteed)
	if left := need.without(others); len(left) > 0 {
		return nil, []refusal{{reason: unexpected, message: fmt.Sprintf("Unexpected error while attempting to recover from admission failure: "+
			"preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: %s", left)}}
	}
	v := &victims{signal: need[0].resource}
	guaranteed = nearest(guaranteed, need.without(bestEffort).without(burstable))
	burstable = nearest(burstable, need.without(bestEffort).without(guaranteed))
	bestEffort = nearest(bestEffort, need.without(burstable).without(guaranteed))
	v.pods = slices.Concat(bestEffort, burstable, guaranteed)
	return v, nil
}

// preemptable reports whether a pod may be preempted for another one.
func preemptable(pod, other *corev1.Pod) bool {
	if podspec.IsCritical(pod) && !podspec.IsCritical(other) {
		return true
	}
	return pod.Spec.Priority != nil && other.Spec.Priority != nil && *pod.Spec.Priority > *other.Spec.Priority
}

// nearest selects pods whose end frees the required resources, if all pods together do. Each step selects the pod whose requests come
// nearest to the shortage, and of equally near ones the one with the smallest requests.
func nearest(pods []*corev1.Pod, need shortages) (out []*corev1.Pod) {
	for len(need) > 0 && len(pods) > 0 {
		best := 0
		for i, pod := range pods {
			d, least := need.distance(pod), need.distance(pods[best])
			if d < least || d == least && !asksForMore(pod, pods[best]) {
				best = i
			}
		}
		need = need.without(pods[best : best+1])
		out = append(out, pods[best])
		pods = slices.Delete(slices.Clone(pods), best, best+1)
	}
	return out
}

func asksForMore(a, b *corev1.Pod) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		if x, y := requested(a, name), requested(b, name); x != y {
			return x > y
		}
	}
	return false
}

// requested returns the resources that the end of a pod frees.
func requested(pod *corev1.Pod, name corev1.ResourceName) int64 {
	if name == corev1.ResourcePods {
		return 1
	}
	return allocatable.Requested(pod, name)
}

// shortages are the resources that the node lacks.
type shortages []shortage

// without returns the shortages that remain after the pods' end.
func (s shortages) without(pods []*corev1.Pod) (out shortages) {
	for _, one := range s {
		for _, pod := range pods {
			one.amount -= requested(pod, one.resource)
		}
		if one.amount > 0 {
			out = append(out, one)
		}
	}
	return out
}

// distance returns how far the pod's end is from ending the shortages: the sum over the resources of the square of the missing part.
func (s shortages) distance(pod *corev1.Pod) (sum float64) {
	for _, one := range s {
		if left := float64(one.amount - requested(pod, one.resource)); left > 0 {
			sum += left / float64(one.amount) * (left / float64(one.amount))
		}
	}
	return sum
}

// String implements fmt.Stringer, in kubelet's form.
func (s shortages) String() string {
	var out strings.Builder
	for _, one := range s {
		fmt.Fprintf(&out, "(res: %s, q: %d), ", one.resource, one.amount)
	}
	return "[" + out.String() + "]"
}
