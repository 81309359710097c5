// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// scheduler is a second scheduler: it binds pods with schedulerName example to the node without taints whose name is last. It does not look
// at resources, and so leaves it to the node to refuse a pod that does not fit.
type scheduler struct{ client.Client }

// Reconcile binds a pod.
func (s *scheduler) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	var pod corev1.Pod
	if err := s.Get(ctx, r.NamespacedName, &pod); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if pod.Spec.SchedulerName != "example" || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 {
		return ctrl.Result{}, nil
	}
	var nodes corev1.NodeList
	if err := s.List(ctx, &nodes); err != nil {
		return ctrl.Result{}, err
	}
	nodes.Items = slices.DeleteFunc(nodes.Items, func(n corev1.Node) bool { return n.Spec.Unschedulable || len(n.Spec.Taints) > 0 })
	if len(nodes.Items) == 0 {
		return ctrl.Result{}, nil // the example does not look again when a node comes
	}
	last := slices.MaxFunc(nodes.Items, func(a, b corev1.Node) int { return cmp.Compare(a.Name, b.Name) })
	binding := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID}, // refused if it is another pod by now
		Target:     corev1.ObjectReference{Kind: "Node", Name: last.Name},
	}
	return ctrl.Result{}, s.SubResource("binding").Create(ctx, &pod, binding)
}
