// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

// patience is how long a pod with an allowed eviction counts as disrupted, and how long a pod may keep the condition DisruptionTarget
// without being deleted.
const patience = 2 * time.Minute

// scale is a workload and the number of pods in its spec.
type scale struct {
	uid      types.UID
	replicas int32
}

// verdict is the status that a budget should have.
type verdict struct {
	status    policyv1.PodDisruptionBudgetStatus
	recheck   time.Duration // when only time may change it; 0: never
	unmanaged bool          // some pods to be counted have no controller
	overdue   []*corev1.Pod // evicted pods that still exist long after
}

// decide judges a budget by the pods that its selector matches. scaleOf returns the workload of a pod; if it fails, decide fails too.
func decide(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod, scaleOf func(*corev1.Pod) (scale, error), now time.Time) (verdict, error) {
	var v verdict
	expected, desired, err := v.count(b, pods, scaleOf)
	if err != nil {
		return verdict{}, err
	}
	going := map[string]metav1.Time{}
	healthy := int32(0)
	for _, pod := range pods {
		if pod.DeletionTimestamp != nil {
			continue
		}
		if allowed, ok := b.Status.DisruptedPods[pod.Name]; ok {
			left := allowed.Add(patience).Sub(now)
			if left < 0 {
				v.overdue = append(v.overdue, pod)
			} else {
				going[pod.Name] = allowed
				if v.recheck == 0 || left < v.recheck {
					v.recheck = max(left, time.Millisecond)
				}
			}
			if left > 0 {
				continue
			}
		}
		if podconditions.IsReady(pod) {
			healthy++
		}
	}
	// A budget that expects no pods allows no disruptions, so that its first pods are safe until they are counted.
	allowed := max(healthy-desired, 0)
	if expected <= 0 {
		allowed = 0
	}
	next := b.DeepCopy()
	next.Status = policyv1.PodDisruptionBudgetStatus{
		CurrentHealthy: healthy, DesiredHealthy: desired, ExpectedPods: expected, DisruptionsAllowed: allowed,
		DisruptedPods: going, ObservedGeneration: b.Generation, Conditions: next.Status.Conditions,
	}
	if !poddisruptionbudget.ConditionsAreUpToDate(next) {
		poddisruptionbudget.UpdateDisruptionAllowedCondition(next)
	}
	v.status = next.Status
	return v, nil
}

// count computes how many pods are expected and how many of them must stay healthy. It can compare only a minAvailable that is a number
// with the pods that exist; every other form relates to the workloads' scale.
func (v *verdict) count(b *policyv1.PodDisruptionBudget, pods []*corev1.Pod, scaleOf func(*corev1.Pod) (scale, error)) (expected,
	desired int32, err error) {
	least, most := b.Spec.MinAvailable, b.Spec.MaxUnavailable
	if most == nil && (least == nil || least.Type == intstr.Int) {
		if least == nil {
			return 0, 0, nil
		}
		return int32(len(pods)), least.IntVal, nil
	}
	seen := map[types.UID]bool{}
	for _, pod := range pods {
		ref := metav1.GetControllerOfNoCopy(pod)
		if ref == nil {
			v.unmanaged = true
			continue
		}
		if seen[ref.UID] {
			continue
		}
		s, err := scaleOf(pod)
		if err != nil {
			return 0, 0, err
		}
		seen[ref.UID] = true
		if !seen[s.uid] || s.uid == ref.UID {
			expected += s.replicas
		}
		seen[s.uid] = true
	}
	share := least
	if most != nil {
		share = most
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(share, int(expected), true)
	if err != nil {
		return 0, 0, fmt.Errorf("read budget: %w", err)
	}
	if most != nil {
		return expected, max(expected-int32(n), 0), nil
	}
	return expected, int32(n), nil
}

// stale reports whether a pod's announced disruption did not come; wait is how long it may still come.
func stale(pod *corev1.Pod, now time.Time) (is bool, wait time.Duration) {
	c := podconditions.Find(pod.Status.Conditions, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || pod.DeletionTimestamp != nil || workload.Finished(pod) ||
		c.Reason == corev1.PodReasonTerminationByKubelet {
		return false, 0
	}
	if wait = c.LastTransitionTime.Add(patience).Sub(now); wait > 0 {
		return false, wait
	}
	return true, 0
}
