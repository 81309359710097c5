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

// patience is how long a pod whose eviction was allowed counts as going, and how long a pod may say that it is the target
// of a disruption without being deleted.
const patience = 2 * time.Minute

// scale is a workload and how many pods it asks for.
type scale struct {
	uid      types.UID
	replicas int32
}

// verdict is what a budget's status ought to be.
type verdict struct {
	status    policyv1.PodDisruptionBudgetStatus
	recheck   time.Duration // when time alone may change it; 0: never
	unmanaged bool          // there are pods without a controller, and they would have to be counted
	overdue   []*corev1.Pod // their evictions were allowed long ago, and they are still there
}

// decide judges a budget by the pods that its selector matches. scaleOf says what workload a pod belongs to; its error
// means that it cannot be told, and so the budget cannot either.
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
	// A budget that expects no pods allows nothing, so that the first ones to come are safe until they are counted.
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

// count says how many pods there ought to be, and how many of them must stay healthy. Only a number of pods to be kept
// can be compared with the pods that exist; all else is a part of what the workloads ask for.
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

// stale says whether a pod has been the target of a disruption that did not come, or for how long it may still.
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
