// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of the Progressing and Available conditions.
const (
	reasonUpdated     = "ReplicaSetUpdated"
	reasonCreateError = "ReplicaSetCreateError"
	reasonNewSet      = "NewReplicaSetCreated"
	reasonFoundNewSet = "FoundNewReplicaSet"
	reasonAvailable   = "NewReplicaSetAvailable"
	reasonTimedOut    = "ProgressDeadlineExceeded"
	reasonPaused      = "DeploymentPaused"
	reasonResumed     = "DeploymentResumed"
	reasonEnough      = "MinimumReplicasAvailable"
	reasonTooFew      = "MinimumReplicasUnavailable"
)

func condition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

func removeCondition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType) {
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == kind })
}

// setCondition sets a condition and moves it to the end of the list. It leaves a condition with the same status and reason as it is.
func setCondition(s *appsv1.DeploymentStatus, kind appsv1.DeploymentConditionType, status corev1.ConditionStatus, reason, message string,
	now time.Time) {
	putCondition(s, appsv1.DeploymentCondition{
		Type: kind, Status: status, Reason: reason, Message: message,
		LastUpdateTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	})
}

func putCondition(s *appsv1.DeploymentStatus, c appsv1.DeploymentCondition) {
	if had := condition(s, c.Type); had != nil && had.Status == c.Status {
		if had.Reason == c.Reason {
			return
		}
		c.LastTransitionTime = had.LastTransitionTime
	}
	removeCondition(s, c.Type)
	s.Conditions = append(s.Conditions, c)
}

func hasDeadline(d *appsv1.Deployment) bool {
	return d.Spec.ProgressDeadlineSeconds != nil && *d.Spec.ProgressDeadlineSeconds != unlimited
}

// complete reports whether all replicas exist, are new and available, and no old ones remain.
func complete(d *appsv1.Deployment, s *appsv1.DeploymentStatus) bool {
	n := *d.Spec.Replicas
	return s.UpdatedReplicas == n && s.Replicas == n && s.AvailableReplicas == n && s.ObservedGeneration >= d.Generation
}

// progressed reports whether any count improved from one status to the next.
func progressed(before, after *appsv1.DeploymentStatus) bool {
	return after.UpdatedReplicas > before.UpdatedReplicas ||
		after.Replicas-after.UpdatedReplicas < before.Replicas-before.UpdatedReplicas ||
		after.ReadyReplicas > before.ReadyReplicas ||
		after.AvailableReplicas > before.AvailableReplicas
}

// counts computes the status from the replica sets' statuses.
func (p *planner) counts() appsv1.DeploymentStatus {
	all := p.all()
	s := appsv1.DeploymentStatus{
		ObservedGeneration:  p.d.Generation,
		Replicas:            sum(all, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.Replicas }),
		ReadyReplicas:       sum(all, func(rs *appsv1.ReplicaSet) int32 { return rs.Status.ReadyReplicas }),
		AvailableReplicas:   sum(all, available),
		TerminatingReplicas: terminating(all),
		CollisionCount:      p.d.Status.CollisionCount,
		Conditions:          slices.Clone(p.d.Status.Conditions),
	}
	if p.new != nil {
		s.UpdatedReplicas = p.new.Status.Replicas
	}
	s.UnavailableReplicas = max(sum(all, count)-s.AvailableReplicas, 0)
	if s.AvailableReplicas >= *p.d.Spec.Replicas-maxUnavailable(p.d) {
		setCondition(&s, appsv1.DeploymentAvailable, corev1.ConditionTrue, reasonEnough, "Deployment has minimum availability.", p.now)
	} else {
		setCondition(&s, appsv1.DeploymentAvailable, corev1.ConditionFalse, reasonTooFew, "Deployment does not have minimum availability.", p.now)
	}
	return s
}

// terminating sums the terminating pods; nil while one replica set has not counted them.
func terminating(sets []*appsv1.ReplicaSet) *int32 {
	var n int32
	for _, rs := range sets {
		if t := rs.Status.TerminatingReplicas; t != nil {
			n += *t
		} else if rs.Status.ObservedGeneration != 0 {
			return nil
		}
	}
	return &n
}

// settleStatus updates the counts and leaves Progressing alone: no rollout is in progress.
func (p *planner) settleStatus() { p.d.Status = p.counts() }

// rolloutStatus updates the counts and the condition of the rollout.
func (p *planner) rolloutStatus() {
	s := p.counts()
	name := fmt.Sprintf("Deployment %q", p.d.Name)
	if p.new != nil {
		name = fmt.Sprintf("ReplicaSet %q", p.new.Name)
	}
	current := condition(&p.d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(p.d) {
		removeCondition(&s, appsv1.DeploymentProgressing)
	} else if done := s.Replicas == s.UpdatedReplicas && current != nil && current.Reason == reasonAvailable; !done {
		switch {
		case complete(p.d, &s):
			setCondition(&s, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonAvailable, name+" has successfully progressed.", p.now)
		case progressed(&p.d.Status, &s):
			c := appsv1.DeploymentCondition{
				Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue, Reason: reasonUpdated, Message: name + " is progressing.",
				LastUpdateTime: metav1.NewTime(p.now), LastTransitionTime: metav1.NewTime(p.now),
			}
			if current != nil && current.Status == corev1.ConditionTrue {
				c.LastTransitionTime = current.LastTransitionTime
			}
			removeCondition(&s, appsv1.DeploymentProgressing) // each step restarts the deadline
			putCondition(&s, c)
		case p.timedOut(&s):
			setCondition(&s, appsv1.DeploymentProgressing, corev1.ConditionFalse, reasonTimedOut, name+" has timed out progressing.", p.now)
		}
	}
	if c, ok := p.replicaFailure(); ok {
		putCondition(&s, c)
	} else {
		removeCondition(&s, appsv1.DeploymentReplicaFailure)
	}
	p.d.Status = s
	p.watchDeadline()
}

func (p *planner) timedOut(s *appsv1.DeploymentStatus) bool {
	c := condition(s, appsv1.DeploymentProgressing)
	if c == nil || c.Reason == reasonAvailable {
		return false
	}
	return c.Reason == reasonTimedOut || p.deadline(c).Before(p.now)
}

func (p *planner) deadline(c *appsv1.DeploymentCondition) time.Time {
	return c.LastUpdateTime.Add(time.Duration(*p.d.Spec.ProgressDeadlineSeconds) * time.Second)
}

// watchDeadline requeues the deployment for when the deadline passes.
func (p *planner) watchDeadline() {
	c := condition(&p.d.Status, appsv1.DeploymentProgressing)
	if !hasDeadline(p.d) || c == nil || c.Reason == reasonTimedOut || complete(p.d, &p.d.Status) {
		return
	}
	p.out.again = max(p.deadline(c).Sub(p.now), 0) + time.Second
}

// replicaFailure returns the first failure in a replica set's status; the newest set's comes first.
func (p *planner) replicaFailure() (appsv1.DeploymentCondition, bool) {
	sets := p.old
	if p.new != nil {
		sets = append([]*appsv1.ReplicaSet{p.new}, p.old...)
	}
	for _, rs := range sets {
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure {
				return appsv1.DeploymentCondition{
					Type: appsv1.DeploymentReplicaFailure, Status: c.Status, Reason: c.Reason, Message: c.Message,
					LastTransitionTime: c.LastTransitionTime, LastUpdateTime: c.LastTransitionTime,
				}, true
			}
		}
	}
	return appsv1.DeploymentCondition{}, false
}
