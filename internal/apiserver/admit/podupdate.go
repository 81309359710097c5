// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// BoundPodUpdate returns the new and the old pod of an update that changes the specification of a pod on a node. Both are
// nil if the pod is on no node, or its specification stays.
func BoundPodUpdate(a *Attributes) (pod, old *corev1.Pod, err error) {
	pod, old, ok := ObjectsOf[*corev1.Pod](a)
	switch {
	case !ok:
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("expected a pod but got a %T", a.Object)) // upstream's words
	case pod.Spec.NodeName == "":
		return nil, nil, nil
	case old == nil:
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("expected an old pod but got a %T", a.Old)) // upstream's words
	case pod.Generation == old.Generation:
		return nil, nil, nil
	}
	return pod, old, nil
}

// NodeOf returns the node of a pod. If there is none, it returns the error that rejects the request.
func NodeOf(ctx context.Context, b resource.Backend, a *Attributes, pod *corev1.Pod) (*corev1.Node, error) {
	name := pod.Spec.NodeName
	obj, err := b.Get(ctx, schema.GroupResource{Resource: "nodes"}, "", name)
	if apierrors.IsNotFound(err) {
		return nil, Forbidden(a, fmt.Errorf("node %q not found", name))
	} else if err != nil {
		return nil, Forbidden(a, fmt.Errorf("failed to get node %q: %w", name, err)) // upstream's words
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("node is a %T", obj))
	}
	return node, nil
}
