// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podtopologylabels is the PodTopologyLabels plug-in: it copies a node's zone and region labels to the pods
// that are bound to it.
package podtopologylabels

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "PodTopologyLabels" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	switch {
	case a.Operation != admit.Create:
		return false
	case a.Is("", "pods", ""):
		pod, ok := a.Object.(*corev1.Pod)
		return !ok || pod.Spec.NodeName != ""
	}
	return a.Is("", "pods", "binding")
}

// Mutate labels a pod created on a node, or the binding of a pod to a node.
func (p plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	var node string
	switch {
	case a.Is("", "pods", ""):
		pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
		if !ok {
			return fmt.Errorf("expected Pod but got %T", a.Object)
		}
		node = pod.Spec.NodeName
	case a.Is("", "pods", "binding"):
		binding, _, ok := admit.ObjectsOf[*corev1.Binding](a)
		if !ok {
			return fmt.Errorf("expected Binding but got %s", a.Kind().Kind)
		}
		if binding.Target.Kind == "Node" {
			node = binding.Target.Name
		}
	}
	if node == "" {
		return nil
	}
	obj, err := b.Get(ctx, schema.GroupResource{Resource: "nodes"}, "", node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	labels := maps.Clone(a.Object.GetLabels())
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := obj.GetLabels()[key]; ok {
			if labels == nil {
				labels = map[string]string{}
			}
			labels[key] = value
		}
	}
	a.Object.SetLabels(labels)
	return nil
}
