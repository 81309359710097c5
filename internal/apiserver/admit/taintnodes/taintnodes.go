// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package taintnodes is the TaintNodesByCondition plug-in: it adds the not-ready taint to a new node, so that no pod is
// scheduled to it before its conditions are known.
package taintnodes

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "TaintNodesByCondition" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return a.Is("", "nodes", "") && a.Operation == admit.Create
}

// Mutate adds the taint on create.
func (p plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	node, _, ok := admit.ObjectsOf[*corev1.Node](a)
	if !ok {
		return admit.Forbidden(a, fmt.Errorf("unexpected type %T", a.Object))
	}
	notReady := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	for i := range node.Spec.Taints {
		if node.Spec.Taints[i].MatchTaint(&notReady) {
			return nil
		}
	}
	node.Spec.Taints = append(node.Spec.Taints, notReady)
	return nil
}
