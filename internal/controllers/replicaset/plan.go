// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package replicaset

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

// burst bounds how many pods one sync creates or deletes.
const burst = 500

// plan is what to do for the replica count: create that many pods, or delete these.
type plan struct {
	create int
	delete []*corev1.Pod
}

// decide compares the active pods with the replica count. neighbours are the pods of all replica sets with the same owner.
func decide(rs *appsv1.ReplicaSet, active, neighbours []*corev1.Pod, now time.Time) plan {
	switch diff := len(active) - int(wanted(rs)); {
	case diff < 0:
		return plan{create: min(-diff, burst)}
	case diff > 0:
		return plan{delete: workload.Victims(active, neighbours, min(diff, burst), now)}
	}
	return plan{}
}

func wanted(rs *appsv1.ReplicaSet) int32 {
	if rs.Spec.Replicas == nil {
		return 1
	}
	return *rs.Spec.Replicas
}

// status computes the status from the observed pods; failure is the error of executing the plan.
func status(rs *appsv1.ReplicaSet, active, terminating []*corev1.Pod, failure error, now time.Time) appsv1.ReplicaSetStatus {
	s := *rs.Status.DeepCopy()
	s.Replicas = int32(len(active))
	s.FullyLabeledReplicas, s.ReadyReplicas, s.AvailableReplicas = 0, 0, 0
	going := int32(len(terminating))
	s.TerminatingReplicas = &going
	s.ObservedGeneration = rs.Generation
	template := labels.SelectorFromSet(rs.Spec.Template.Labels)
	for _, pod := range active {
		if template.Matches(labels.Set(pod.Labels)) {
			s.FullyLabeledReplicas++
		}
		if podconditions.IsReady(pod) {
			s.ReadyReplicas++
		}
		if ok, _ := workload.Available(pod, rs.Spec.MinReadySeconds, now); ok {
			s.AvailableReplicas++
		}
	}
	is := func(c appsv1.ReplicaSetCondition) bool { return c.Type == appsv1.ReplicaSetReplicaFailure }
	switch failed := slices.ContainsFunc(s.Conditions, is); {
	case failure == nil:
		s.Conditions = slices.DeleteFunc(s.Conditions, is)
	case !failed:
		reason := "FailedCreate"
		if len(active) > int(wanted(rs)) {
			reason = "FailedDelete"
		}
		s.Conditions = append(s.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(now), Reason: reason, Message: failure.Error(),
		})
	}
	return s
}

// changed reports whether a status is worth writing.
func changed(before, after appsv1.ReplicaSetStatus) bool {
	return !equality.Semantic.DeepEqual(before, after)
}
