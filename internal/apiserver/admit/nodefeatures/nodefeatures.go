// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodefeatures is the NodeDeclaredFeatureValidator plug-in: it rejects a change of a running pod that requires
// a feature which its node does not declare.
package nodefeatures

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
	features "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in for a release of Kubernetes. Nodes need not declare features that all nodes of the release
// have.
func New(release string) (admit.Plugin, error) {
	v, err := version.Parse(release)
	if err != nil {
		return nil, err
	}
	return &plugin{release: v}, nil
}

type plugin struct{ release *version.Version }

func (*plugin) Name() string { return "NodeDeclaredFeatureValidator" }

// Handles implements [admit.Filter].
func (*plugin) Handles(a *admit.Attributes) bool {
	return a.Operation == admit.Update && (a.Is("", "pods", "") || a.Is("", "pods", "resize"))
}

// Validate rejects a change that the pod's node does not support.
func (p *plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	pod, old, err := admit.BoundPodUpdate(a)
	if err != nil || pod == nil {
		return err
	}
	needs, err := features.DefaultFramework.InferForPodUpdate(
		&features.PodInfo{Spec: &old.Spec, Status: &old.Status}, &features.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, p.release)
	if err != nil {
		return admit.Forbidden(a, fmt.Errorf("failed to infer pod capability requirements: %w", err)) // upstream's words
	}
	if needs.IsEmpty() {
		return nil
	}
	node, err := admit.NodeOf(ctx, b, a, pod)
	if err != nil {
		return err
	}
	match, err := features.DefaultFramework.MatchNode(needs, node)
	if err != nil {
		return admit.Forbidden(a, fmt.Errorf("failed to match pod requirements against node %q: %w", node.Name, err)) // upstream's words
	}
	if !match.IsMatch {
		return admit.Forbidden(a, fmt.Errorf("pod update requires features %s which are not available on node %q",
			strings.Join(match.UnsatisfiedRequirements, ", "), node.Name))
	}
	return nil
}
