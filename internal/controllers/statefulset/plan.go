// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"cmp"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

// observed is the complete input of a decision.
type observed struct {
	set             *appsv1.StatefulSet
	pods            []*corev1.Pod // the pods that the set controls
	claim           func(name string) *corev1.PersistentVolumeClaim
	current, update revision
	collisions      int32
	settled         bool // the cache shows all earlier writes
	now             time.Time
}

// revision is the name of a revision and its template.
type revision struct {
	name     string
	template *corev1.PodTemplateSpec
}

// what is an action on a pod.
type what int

const (
	create  what = iota // create its claims, then the pod
	remove              // delete the pod
	furnish             // create the missing claims, and apply the policy to the others
	mend                // correct the pod's name, volumes and claims
	retain              // apply the policy to the claims before the pod goes
)

// step is one action on one pod.
type step struct {
	what   what
	pod    *corev1.Pod
	update bool // deleted for an update: the status counts it as gone
}

// decision is what the controller does next. For a set that keeps order it executes one step after the other until one fails; for a
// parallel set it executes all steps of a phase concurrently.
type decision struct {
	phases [][]step
	status appsv1.StatefulSetStatus
	again  time.Duration // requeue then, if no event comes before; 0: never
}

func ordered(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

// decide returns the next steps from the observed state towards the desired one. It does no I/O.
//
// Worked example, a set of three that keeps order, of which web-1 is missing and web-3 is one too many: web-0 is available, so decide
// creates web-1, and nothing else. When web-1 is available, it looks at web-2; when all three are, it deletes web-3; and only then does it
// delete pods of another revision, the highest first, each when those above it are available again.
func decide(in observed) decision {
	set := in.set
	out := decision{status: in.status(), again: workload.NextAvailable(in.pods, set.Spec.MinReadySeconds, in.now)}
	if set.DeletionTimestamp != nil || !in.settled {
		return out
	}
	wanted, excess := in.partition()
	weak := in.weakest(wanted, excess)

	var steps []step
	for _, pod := range wanted {
		more, stop := in.keep(pod)
		if steps = append(steps, more...); stop && ordered(set) {
			out.phases = [][]step{steps}
			return out
		}
	}
	out.phases = append(out.phases, steps)

	steps = nil
	for _, pod := range excess {
		if in.claimsOff(pod) {
			steps = append(steps, step{what: retain, pod: pod})
		}
	}
	out.phases = append(out.phases, steps)

	steps = nil
	for _, pod := range excess {
		more, stop := in.drop(pod, weak)
		if steps = append(steps, more...); stop && ordered(set) {
			out.phases = append(out.phases, steps)
			return out
		}
	}
	out.phases = append(out.phases, steps)
	if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType {
		out.phases = append(out.phases, in.roll(wanted))
	}
	return out
}

// partition splits the pods into those of the wanted ordinals, lowest first, with new pods in the gaps, and the rest, highest first.
func (in *observed) partition() (wanted, excess []*corev1.Pod) {
	set := in.set
	wanted = make([]*corev1.Pod, replicas(set))
	for _, pod := range in.pods {
		if _, n := ordinal(pod); within(set, pod) {
			wanted[n-first(set)] = pod
		} else if n >= 0 {
			excess = append(excess, pod)
		}
	}
	for i, pod := range wanted {
		if pod != nil {
			continue
		}
		of := in.update
		if in.old(i) {
			of = in.current
		}
		wanted[i] = newPod(set, of.template, of.name, first(set)+i)
	}
	slices.SortFunc(excess, func(a, b *corev1.Pod) int {
		_, x := ordinal(a)
		_, y := ordinal(b)
		return cmp.Compare(y, x)
	})
	return wanted, excess
}

// old reports whether the i-th pod is made from the current revision, not from the update revision.
func (in *observed) old(i int) bool {
	s := in.set.Spec.UpdateStrategy
	switch {
	case s.RollingUpdate != nil:
		return s.RollingUpdate.Partition != nil && i < int(*s.RollingUpdate.Partition)
	case s.Type == appsv1.RollingUpdateStatefulSetStrategyType:
		return i < int(in.set.Status.CurrentReplicas)
	}
	return false
}

func created(pod *corev1.Pod) bool { return pod.Status.Phase != "" }

func running(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning && podconditions.IsReady(pod)
}

func (in *observed) available(pod *corev1.Pod) bool {
	ok, _ := workload.Available(pod, in.set.Spec.MinReadySeconds, in.now)
	return ok
}

func (in *observed) unavailable(pod *corev1.Pod) bool {
	return !in.available(pod) || pod.DeletionTimestamp != nil
}

// weakest returns the first pod that is not available: the one that may go before the others are available.
func (in *observed) weakest(wanted, excess []*corev1.Pod) *corev1.Pod {
	for _, pod := range wanted {
		if in.unavailable(pod) {
			return pod
		}
	}
	for _, pod := range slices.Backward(excess) {
		if in.unavailable(pod) {
			return pod
		}
	}
	return nil
}

// keep returns the steps for a wanted pod; stop reports whether the pods after it have to wait.
func (in *observed) keep(pod *corev1.Pod) (steps []step, stop bool) {
	switch {
	case workload.Finished(pod): // however it ended: a set's pods run for ever
		if pod.DeletionTimestamp == nil {
			steps = append(steps, step{what: remove, pod: pod})
		}
		return steps, true
	case pod.UID == "": // does not exist yet
		if blocked(in.set, pod, in.claim) {
			return nil, true
		}
		return []step{{what: create, pod: pod}}, true
	}
	if pod.Status.Phase == corev1.PodPending && (in.claimsOff(pod) || in.claimsMissing(pod)) {
		steps = append(steps, step{what: furnish, pod: pod})
	}
	if ordered(in.set) && (pod.DeletionTimestamp != nil || !running(pod) || !in.available(pod)) {
		return steps, true
	}
	if !named(pod) || !mounted(in.set, pod) || in.claimsOff(pod) {
		steps = append(steps, step{what: mend, pod: pod})
	}
	return steps, false
}

// drop returns the steps for a pod that is one too many.
func (in *observed) drop(pod *corev1.Pod, weak *corev1.Pod) (steps []step, stop bool) {
	if pod.DeletionTimestamp != nil {
		return nil, true
	}
	if ordered(in.set) && (!running(pod) || !in.available(pod)) && pod != weak {
		return nil, true
	}
	return []step{{what: remove, pod: pod}}, true
}

// claimsOff reports whether an existing claim lacks the owners that the policy requires.
func (in *observed) claimsOff(pod *corev1.Pod) bool {
	return slices.ContainsFunc(claims(in.set, pod), func(want claim) bool {
		c := in.claim(want.object.Name)
		if c == nil {
			return false
		}
		_, off, _ := owners(in.set, pod, c)
		return off
	})
}

func (in *observed) claimsMissing(pod *corev1.Pod) bool {
	return slices.ContainsFunc(claims(in.set, pod), func(want claim) bool {
		c := in.claim(want.object.Name)
		return c == nil || c.DeletionTimestamp != nil
	})
}

// roll deletes pods that are not of the update revision, so that later syncs create them anew. It starts with the highest ordinal, and
// deletes no more than may be unavailable.
func (in *observed) roll(wanted []*corev1.Pod) []step {
	from, most := 0, 1
	if r := in.set.Spec.UpdateStrategy.RollingUpdate; r != nil {
		if r.Partition != nil {
			from = int(*r.Partition)
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxUnavailable, intstr.FromInt32(1)), replicas(in.set), false)
		if err == nil {
			most = max(1, n)
		}
	}
	former := func(pod *corev1.Pod) bool {
		return pod.Labels[appsv1.StatefulSetRevisionLabel] != in.update.name && pod.DeletionTimestamp == nil
	}
	for _, pod := range wanted {
		if in.unavailable(pod) {
			most--
		}
	}
	var steps []step
	down := func(which func(*corev1.Pod) bool) {
		for i := len(wanted) - 1; i >= from; i-- {
			if pod := wanted[i]; former(pod) && which(pod) {
				steps = append(steps, step{what: remove, pod: pod, update: true})
			}
		}
	}
	if !ordered(in.set) { // deleting an unavailable pod costs no availability
		down(func(pod *corev1.Pod) bool { return pod.UID != "" && !in.available(pod) })
	}
	down(func(pod *corev1.Pod) bool {
		if most <= 0 || !ordered(in.set) && in.unavailable(pod) {
			return false
		}
		most--
		return true
	})
	return steps
}

// status returns the status that the set should have.
func (in *observed) status() appsv1.StatefulSetStatus {
	set := in.set
	s := appsv1.StatefulSetStatus{
		ObservedGeneration: set.Generation, CurrentRevision: in.current.name, UpdateRevision: in.update.name,
		CollisionCount: &in.collisions, Conditions: set.Status.Conditions,
	}
	for _, pod := range in.pods {
		if created(pod) {
			s.Replicas++
			if pod.DeletionTimestamp == nil {
				switch of := pod.Labels[appsv1.StatefulSetRevisionLabel]; {
				case of == in.current.name && of == in.update.name:
					s.CurrentReplicas++
					s.UpdatedReplicas++
				case of == in.current.name:
					s.CurrentReplicas++
				case of == in.update.name:
					s.UpdatedReplicas++
				}
			}
		}
		if running(pod) {
			s.ReadyReplicas++
			if in.available(pod) {
				s.AvailableReplicas++
			}
		}
	}
	return s
}

// complete makes the update revision the current one when all pods have it and are ready.
func complete(set *appsv1.StatefulSet, s *appsv1.StatefulSetStatus) {
	if n := int32(replicas(set)); s.UpdatedReplicas == n && s.ReadyReplicas == n && s.Replicas == n {
		s.CurrentReplicas, s.CurrentRevision = s.UpdatedReplicas, s.UpdateRevision
	}
}
