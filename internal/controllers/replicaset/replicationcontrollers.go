// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package replicaset

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// ReplicationControllers describes the loop over replication controllers.
func ReplicationControllers() controllers.Controller {
	rcs := corev1.SchemeGroupVersion.WithResource("replicationcontrollers")
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	return controllers.Controller{
		Name:      "replicationcontroller-controller",
		Account:   "replication-controller",
		Component: "replication-controller",
		Inputs:    []schema.GroupVersionResource{rcs, pods},
		Outputs:   []schema.GroupVersionResource{rcs, pods},
		Syncs:     &controllers.Syncs{Flag: "concurrent-rc-syncs", Default: 5},
		New:       replicationControllers,
	}
}

func replicationControllers(d *controllers.Deps) (controllers.Runner, error) {
	rcs := d.Informers.Core().V1().ReplicationControllers()
	lister := rcs.Lister()
	c, err := newController(d, "replicationmanager", source{
		kind: corev1.SchemeGroupVersion.WithKind("ReplicationController"),
		get: func(namespace, name string) (set, error) {
			rc, err := lister.ReplicationControllers(namespace).Get(name)
			if err != nil {
				return set{}, err
			}
			return asSet(rc), nil
		},
		list: func(namespace string) ([]set, error) {
			all, err := lister.ReplicationControllers(namespace).List(labels.Everything())
			out := make([]set, len(all))
			for i, rc := range all {
				out[i] = asSet(rc)
			}
			return out, err
		},
		fresh: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return d.Client.CoreV1().ReplicationControllers(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		write: func(ctx context.Context, s set, status appsv1.ReplicaSetStatus) error {
			update := s.owner.(*corev1.ReplicationController).DeepCopy()
			update.Status = replicationStatus(status)
			_, err := d.Client.CoreV1().ReplicationControllers(s.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	return c, controllers.Subscribe(d, rcs.Informer(), controllers.Handler[*corev1.ReplicationController]{
		Add:    func(rc *corev1.ReplicationController) { c.changed(nil, rc) },
		Update: func(before, updated *corev1.ReplicationController) { c.changed(before, updated) },
		Delete: func(rc *corev1.ReplicationController) { c.gone(rc) },
	})
}

// asSet converts a replication controller to a replica set, which shares its parts with rc.
func asSet(rc *corev1.ReplicationController) set {
	rs := &appsv1.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: appsv1.ReplicaSetSpec{
			Replicas: rc.Spec.Replicas, MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector: &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: appsv1.ReplicaSetStatus{
			Replicas: rc.Status.Replicas, FullyLabeledReplicas: rc.Status.FullyLabeledReplicas, ReadyReplicas: rc.Status.ReadyReplicas,
			AvailableReplicas: rc.Status.AvailableReplicas, ObservedGeneration: rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		rs.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		rs.Status.Conditions = append(rs.Status.Conditions, appsv1.ReplicaSetCondition{
			Type: appsv1.ReplicaSetConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason,
			Message: c.Message,
		})
	}
	return set{rs, rc}
}

// replicationStatus converts a replica set's status to a replication controller's.
func replicationStatus(s appsv1.ReplicaSetStatus) corev1.ReplicationControllerStatus {
	out := corev1.ReplicationControllerStatus{
		Replicas: s.Replicas, FullyLabeledReplicas: s.FullyLabeledReplicas, ReadyReplicas: s.ReadyReplicas,
		AvailableReplicas: s.AvailableReplicas, ObservedGeneration: s.ObservedGeneration,
	}
	for _, c := range s.Conditions {
		out.Conditions = append(out.Conditions, corev1.ReplicationControllerCondition{
			Type: corev1.ReplicationControllerConditionType(c.Type), Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason,
			Message: c.Message,
		})
	}
	return out
}
