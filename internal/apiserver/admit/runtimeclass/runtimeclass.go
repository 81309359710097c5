// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package runtimeclass is the RuntimeClass plug-in: it copies the overhead, node selector and tolerations of its class
// to a pod, and rejects a pod with another overhead.
package runtimeclass

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/tolerations"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "RuntimeClass" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	if !a.Is("", "pods", "") || a.Operation != admit.Create {
		return false
	}
	pod, ok := a.Object.(*corev1.Pod)
	return !ok || pod.Spec.RuntimeClassName != nil || pod.Spec.Overhead != nil
}

// Mutate merges the class into a new pod.
func (plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod, class, err := find(ctx, b, a)
	if err != nil || pod == nil || class == nil {
		return err
	}
	if class.Overhead != nil {
		if len(pod.Spec.Overhead) > 0 && !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
			return mismatch(a)
		}
		pod.Spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}
	if class.Scheduling == nil {
		return nil
	}
	selector := maps.Clone(pod.Spec.NodeSelector)
	if selector == nil && class.Scheduling.NodeSelector != nil {
		selector = map[string]string{}
	}
	for key, want := range class.Scheduling.NodeSelector {
		if has, ok := selector[key]; ok && has != want {
			return admit.Forbidden(a, fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key,
				want, key, has))
		}
		selector[key] = want
	}
	pod.Spec.NodeSelector = selector
	pod.Spec.Tolerations = tolerations.Merge(pod.Spec.Tolerations, class.Scheduling.Tolerations)
	return nil
}

// Validate checks that the pod's overhead equals its class's.
func (plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod, class, err := find(ctx, b, a)
	if err != nil || pod == nil {
		return err
	}
	if class == nil || class.Overhead == nil {
		if pod.Spec.Overhead != nil {
			return admit.Forbidden(a, errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"))
		}
		return nil
	}
	if !equality.Semantic.DeepEqual(class.Overhead.PodFixed, pod.Spec.Overhead) {
		return mismatch(a)
	}
	return nil
}

func mismatch(a *admit.Attributes) error {
	return admit.Forbidden(a, errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
}

// find returns the pod, or nil if the request does not create one, and its class, or nil if it names none.
func find(ctx context.Context, b resource.Backend, a *admit.Attributes) (*corev1.Pod, *nodev1.RuntimeClass, error) {
	if !a.Is("", "pods", "") || a.Operation != admit.Create {
		return nil, nil, nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return nil, nil, apierrors.NewBadRequest("Resource was marked with kind Pod but was unable to be converted")
	}
	if pod.Spec.RuntimeClassName == nil {
		return pod, nil, nil
	}
	if err := admit.CheckName(*pod.Spec.RuntimeClassName); err != nil {
		return nil, nil, err
	}
	obj, err := b.Get(ctx, schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}, "", *pod.Spec.RuntimeClassName)
	if apierrors.IsNotFound(err) {
		return pod, nil, admit.Forbidden(a, fmt.Errorf("pod rejected: RuntimeClass %q not found", *pod.Spec.RuntimeClassName))
	}
	if err != nil {
		return pod, nil, err
	}
	class, ok := obj.(*nodev1.RuntimeClass)
	if !ok {
		return pod, nil, apierrors.NewInternalError(fmt.Errorf("runtime class is a %T", obj))
	}
	return pod, class, nil
}
