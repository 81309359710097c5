// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

// in are the objects of a view, by their names.
func in[T metav1.Object](v controllertest.View, gvr schema.GroupVersionResource, which func(T) bool) (found []T) {
	for _, o := range v[gvr] {
		if t, ok := o.(T); ok && which(t) {
			found = append(found, t)
		}
	}
	slices.SortFunc(found, func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	return found
}

func ready(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && len(pod.Status.Conditions) > 0
}

func ordinal(pod *corev1.Pod) int {
	n, _ := strconv.Atoi(pod.Name[strings.LastIndexByte(pod.Name, '-')+1:])
	return n
}

// order: a stateful set that keeps an order makes a pod when all before it are ready, and takes one away when there is none after it, or,
// to replace it, when those are ready.
func (p *promises) order(w *controllertest.World, event watch.EventType, pod *corev1.Pod) string {
	ref := metav1.GetControllerOf(pod)
	if ref == nil || ref.Kind != "StatefulSet" || !w.ByController() {
		return ""
	}
	taken := event == watch.Deleted || pod.DeletionTimestamp != nil
	if event != watch.Added && !taken || pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return "" // one that has ended is replaced at once
	}
	return w.Seen(func(v controllertest.View) string {
		sets := in(v, statefulSetsResource, func(set *appsv1.StatefulSet) bool { return set.UID == ref.UID })
		if len(sets) != 1 {
			return fmt.Sprintf("%s: its stateful set was not there to be seen", pod.Name)
		}
		if sets[0].Spec.PodManagementPolicy == appsv1.ParallelPodManagement {
			return ""
		}
		wish := int(*sets[0].Spec.Replicas)
		pods := map[int]*corev1.Pod{}
		for _, other := range in(v, podsResource, func(other *corev1.Pod) bool { return ownedBy(other, ref.UID) }) {
			pods[ordinal(other)] = other
		}
		n := ordinal(pod)
		if !taken {
			for before := range n {
				if pods[before] == nil || !ready(pods[before]) {
					return fmt.Sprintf("pod %s is made before %d is ready", pod.Name, before)
				}
			}
			return ""
		}
		for after, other := range pods {
			if after > n && (n >= wish || after >= wish || !ready(other)) {
				return fmt.Sprintf("pod %s of %d is taken before %d", pod.Name, wish, after)
			}
		}
		return ""
	})
}

// available: a roll-out takes pods from a replica set only as long as enough others are available.
func (p *promises) available(w *controllertest.World, rs *appsv1.ReplicaSet) string {
	before, known := p.sizes[rs.UID]
	p.sizes[rs.UID] = *rs.Spec.Replicas
	ref := metav1.GetControllerOf(rs)
	less := before - *rs.Spec.Replicas
	if !known || less <= 0 || ref == nil || !w.ByController() {
		return ""
	}
	return w.Seen(func(v controllertest.View) string {
		deployments := in(v, deploymentsResource, func(d *appsv1.Deployment) bool { return d.UID == ref.UID })
		if len(deployments) != 1 {
			return fmt.Sprintf("%s: its deployment was not there to be seen", rs.Name)
		}
		d := deployments[0]
		if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
			return ""
		}
		sum, idle := int32(0), int32(0)
		for _, set := range in(v, setsResource, func(set *appsv1.ReplicaSet) bool { return ownedBy(set, ref.UID) }) {
			if *set.Spec.Replicas > 0 && set.Annotations["deployment.kubernetes.io/desired-replicas"] != fmt.Sprint(*d.Spec.Replicas) {
				return "" // it is being scaled
			}
			sum += set.Status.AvailableReplicas
			if set.UID == rs.UID {
				idle = *set.Spec.Replicas - set.Status.AvailableReplicas
			}
		}
		taken := less - max(0, idle) // the first to go are those that are not available
		if left := sum - taken; taken > 0 && left < *d.Spec.Replicas-d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntVal {
			return fmt.Sprintf("%s goes from %d to %d, which leaves %d of %d", rs.Name, before, *rs.Spec.Replicas, left, *d.Spec.Replicas)
		}
		return ""
	})
}

const guarded = 4 // pods that a budget keeps

func budget(name string, w *controllertest.World) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "guarded"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector("guarded")}}
	n := intstr.FromInt32(int32(1 + w.Chance(guarded, name+" size")))
	part := intstr.FromString(fmt.Sprintf("%d%%", 10+w.Chance(80, name+" part")))
	switch w.Chance(4, name) {
	case 0:
		b.Spec.MinAvailable = &n
	case 1:
		b.Spec.MinAvailable = &part
	case 2:
		b.Spec.MaxUnavailable = &n
	case 3:
		b.Spec.MaxUnavailable = &part
	}
	return b
}

// wanted is how many pods a budget wants to be healthy.
func wanted(b *policyv1.PodDisruptionBudget) int32 {
	value := func(v *intstr.IntOrString) int32 {
		n, _ := intstr.GetScaledValueFromIntOrPercent(v, guarded, true)
		return int32(n)
	}
	if b.Spec.MinAvailable != nil {
		return value(b.Spec.MinAvailable)
	}
	return max(0, guarded-value(b.Spec.MaxUnavailable))
}

// drain asks for each pod that a budget keeps to go, again and again as `kubectl drain` does.
func drain(w *controllertest.World) {
	for range 3 {
		evictAll(w)
		w.Pause("drain", 2*time.Second)
	}
}

// evictAll asks once for each; those that may go must not be too many.
func evictAll(w *controllertest.World) {
	var names []string
	w.Locked(func() string {
		for _, pod := range controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items {
			if pod.Labels["app"] == "guarded" {
				names = append(names, pod.Name)
			}
		}
		return ""
	})
	for _, name := range names {
		if !w.Evict("default", name) {
			continue
		}
		if wrong := w.Locked(func() string { return enough(w, name) }); wrong != "" {
			w.Fail(wrong)
		}
	}
}

func enough(w *controllertest.World, evicted string) string {
	healthy := int32(0)
	for _, pod := range controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items {
		if pod.Labels["app"] == "guarded" && ready(&pod) {
			healthy++
		}
	}
	for _, b := range controllertest.All[*policyv1.PodDisruptionBudgetList](w, budgetsResource, "PodDisruptionBudget").Items {
		if healthy < wanted(&b) {
			return fmt.Sprintf("%s was evicted, which leaves %d healthy pods, of which %d are wanted: %+v", evicted, healthy, wanted(&b), b.Status)
		}
	}
	return ""
}
