// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podantiaffinity is the LimitPodHardAntiAffinityTopology plug-in: it rejects pods with required anti-affinity in a
// topology wider than a node, which could keep other pods out of a whole domain. It is off by default.
package podantiaffinity

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "LimitPodHardAntiAffinityTopology" }

// Validate rejects a required term whose topology is not the node.
func (plugin) Validate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !a.Is("", "pods", "") || a.Operation != admit.Create && a.Operation != admit.Update {
		return nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return apierrors.NewBadRequest("Resource was marked with kind Pod but was unable to be converted") // upstream's words
	}
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return nil
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		if term.TopologyKey != corev1.LabelHostname {
			return apierrors.NewForbidden(a.Descriptor.GroupResource(), pod.Name,
				// upstream's words
				fmt.Errorf("affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey %v but only key %v is allowed", term.TopologyKey,
					corev1.LabelHostname))
		}
	}
	return nil
}
