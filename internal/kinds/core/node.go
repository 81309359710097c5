// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Node describes nodes, with the subresources proxy and status. Their store keys begin with "minions", the former name of nodes.
func Node(dial egress.Dial) *resource.Descriptor {
	check := upstream.Node()
	return kind.Settle(kind.Describe[*corev1.Node](resource.Descriptor{
		Resource:   "nodes",
		Kind:       "Node",
		ShortNames: []string{"no"},
		Prefix:     "minions",
		FieldNames: []string{"spec.unschedulable"},
		Fields: kind.Fields(func(n *corev1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(n *corev1.Node) {
				n.Spec.ConfigSource = nil
				n.Status.Config = nil
				dropOffNode(n, &corev1.Node{})
			}),
			PrepareUpdate: kind.OnUpdate(func(n, old *corev1.Node) {
				n.Status = old.Status
				if old.Spec.ConfigSource == nil {
					n.Spec.ConfigSource = nil
				}
				dropOffNode(n, old)
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			Warn:           kind.Warn(func(n, _ *corev1.Node) []string { return nodeWarnings(n) }),
		},
		Subresources: []resource.Subresource{
			nodeProxy(dial),
			kind.Status(func(n, old *corev1.Node) {
				n.Spec = old.Spec
				if old.Status.Config == nil {
					n.Status.Config = nil
				}
				if !upstream.Gate("KubeletInUserNamespace") && old.Status.NodeInfo.RunningInUserNamespace == nil {
					n.Status.NodeInfo.RunningInUserNamespace = nil
				}
			}, check.Status),
		},
	}), func(n *corev1.Node) {
		// podCIDR is the first of podCIDRs. If both are set and differ, the older field counts.
		spec := &n.Spec
		switch {
		case spec.PodCIDR != "" && (len(spec.PodCIDRs) == 0 || spec.PodCIDRs[0] != spec.PodCIDR):
			spec.PodCIDRs = []string{spec.PodCIDR}
		case len(spec.PodCIDRs) > 0:
			spec.PodCIDR = spec.PodCIDRs[0]
		}
	})
}

// dropOffNode drops the fields of disabled gates, unless the old node has them.
func dropOffNode(n, old *corev1.Node) {
	if !upstream.Gate("NodeDeclaredFeatures") && old.Status.DeclaredFeatures == nil {
		n.Status.DeclaredFeatures = nil
	}
	if !upstream.Gate("InPlacePodVerticalScalingSchedulerPreemption") && old.Spec.PodPreemptionPolicy == nil {
		n.Spec.PodPreemptionPolicy = nil
	}
}

// nodeWarnings returns warnings about fields without effect, and malformed addresses.
func nodeWarnings(n *corev1.Node) []string {
	var warnings []string
	if n.Spec.ConfigSource != nil {
		warnings = append(warnings, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		warnings = append(warnings, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		warnings = append(warnings, validation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return warnings
}
