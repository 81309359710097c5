// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/helper"
	"k8s.io/kubernetes/pkg/apis/core/pods"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Gate reports whether a Kubernetes feature gate is on. Gates keep their defaults, so the answer never changes.
func Gate(name string) bool {
	return utilfeature.DefaultFeatureGate.Enabled(featuregate.Feature(name))
}

// podOptions returns what pod validation allows: what the gates enable and, on update, what the old pod already has, even if it is invalid:
// a stored object can always be updated. old is nil on create.
func podOptions(old *core.PodSpec) validation.PodValidationOptions {
	o := validation.PodValidationOptions{
		AllowInvalidPodDeletionCost:                         !Gate("PodDeletionCost"),
		PodLevelResourcesEnabled:                            Gate("PodLevelResources"),
		AllowSidecarResizePolicy:                            Gate("InPlacePodVerticalScaling"),
		AllowMatchLabelKeysInPodTopologySpread:              Gate("MatchLabelKeysInPodTopologySpread"),
		AllowMatchLabelKeysInPodTopologySpreadSelectorMerge: Gate("MatchLabelKeysInPodTopologySpreadSelectorMerge"),
		InPlacePodLevelResourcesVerticalScalingEnabled:      Gate("InPlacePodLevelResourcesVerticalScaling"),
		InPlacePodVerticalScalingMemoryBackedVolumesEnabled: Gate("InPlacePodVerticalScalingMemoryBackedVolumes"),
		AllowContainerRestartPolicyRules:                    Gate("ContainerRestartRules"),
		AllowRestartAllContainers:                           Gate("RestartAllContainersOnContainerExits"),
		AllowImageVolumeWithDigest:                          Gate("ImageVolumeWithDigest"),
		AllowRelaxedEnvironmentVariableValidation:           Gate("RelaxedEnvironmentVariableValidation"),
		AllowEnvFilesValidation:                             Gate("EnvFiles"),
		AllowUserNamespacesHostNetworkSupport:               Gate("UserNamespacesHostNetworkSupport"),
		AllowOnlyRecursiveSELinuxChangePolicy:               !Gate("SELinuxMount"),
		AllowTaintTolerationComparisonOperators:             Gate("TaintTolerationComparisonOperators"),
	}
	if old == nil {
		return o
	}
	for c := range containers(old) {
		o.AllowIndivisibleHugePagesValues = o.AllowIndivisibleHugePagesValues || indivisible(c.Resources.Requests) ||
			indivisible(c.Resources.Limits)
		o.AllowSysAdminWhenPrivilegeEscalationFalse = o.AllowSysAdminWhenPrivilegeEscalationFalse || sysAdminUnescalated(c.SecurityContext)
		o.AllowUserNamespacesWithVolumeDevices = o.AllowUserNamespacesWithVolumeDevices ||
			old.HostUsers != nil && !*old.HostUsers && len(c.VolumeDevices) > 0
		for _, env := range c.Env {
			o.AllowEnvFilesValidation = o.AllowEnvFilesValidation || env.ValueFrom != nil && env.ValueFrom.FileKeyRef != nil
		}
		o.AllowContainerRestartPolicyRules = o.AllowContainerRestartPolicyRules || len(c.RestartPolicyRules) > 0
		for _, rule := range c.RestartPolicyRules {
			o.AllowRestartAllContainers = o.AllowRestartAllContainers || rule.Action == core.ContainerRestartRuleActionRestartAllContainers
		}
	}
	for _, c := range old.InitContainers {
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == core.ContainerRestartPolicyAlways
		o.AllowSidecarResizePolicy = o.AllowSidecarResizePolicy || sidecar && len(c.ResizePolicy) > 0
		for _, p := range c.ResizePolicy {
			o.AllowExistingRestartContainerForNonSidecarInitContainer = o.AllowExistingRestartContainerForNonSidecarInitContainer ||
				!sidecar && p.RestartPolicy == core.RestartContainer
		}
	}
	o.AllowIndivisibleHugePagesValues = o.AllowIndivisibleHugePagesValues || indivisible(old.Overhead)
	o.AllowUserNamespacesHostNetworkSupport = o.AllowUserNamespacesHostNetworkSupport ||
		old.HostUsers != nil && !*old.HostUsers && old.HostNetwork
	if s := old.SecurityContext; s != nil && s.SELinuxChangePolicy != nil {
		o.AllowOnlyRecursiveSELinuxChangePolicy = false
	}
	for _, c := range old.TopologySpreadConstraints {
		o.AllowInvalidTopologySpreadConstraintLabelSelector = o.AllowInvalidTopologySpreadConstraintLabelSelector ||
			len(metav1validation.ValidateLabelSelector(c.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, nil)) > 0
		o.OldPodViolatesMatchLabelKeysValidation = o.OldPodViolatesMatchLabelKeysValidation ||
			len(validation.ValidateMatchLabelKeysAndMismatchLabelKeys(nil, c.MatchLabelKeys, nil, c.LabelSelector)) > 0
	}
	for _, v := range old.Volumes {
		o.AllowEmptyImageVolumeReference = o.AllowEmptyImageVolumeReference || v.Image != nil && v.Image.Reference == ""
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			o.AllowNonLocalProjectedTokenPath = o.AllowNonLocalProjectedTokenPath ||
				s.ServiceAccountToken != nil && len(validation.ValidateLocalNonReservedPath(s.ServiceAccountToken.Path, nil)) > 0
		}
	}
	for _, t := range old.Tolerations {
		o.AllowTaintTolerationComparisonOperators = o.AllowTaintTolerationComparisonOperators ||
			t.Operator == core.TolerationOpLt || t.Operator == core.TolerationOpGt
	}
	if s := old.SecurityContext; s != nil {
		for _, sysctl := range s.Sysctls {
			o.AllowNamespacedSysctlsForHostNetAndHostIPC = o.AllowNamespacedSysctlsForHostNetAndHostIPC ||
				validation.ValidateHostSysctl(sysctl.Name, old, nil) != nil
		}
	}
	if a := old.Affinity; a != nil {
		affinityOptions(a, &o)
	}
	return o
}

// affinityOptions allows what an old pod's affinity already has.
func affinityOptions(a *core.Affinity, o *validation.PodValidationOptions) {
	if n := a.NodeAffinity; n != nil && n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		o.AllowInvalidLabelValueInRequiredNodeAffinity =
			helper.HasInvalidLabelValueInNodeSelectorTerms(n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
	}
	var terms []core.PodAffinityTerm
	var weighted []core.WeightedPodAffinityTerm
	if p := a.PodAffinity; p != nil {
		terms = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	if p := a.PodAntiAffinity; p != nil {
		terms = append(terms, p.RequiredDuringSchedulingIgnoredDuringExecution...)
		weighted = append(weighted, p.PreferredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, w := range weighted {
		terms = append(terms, w.PodAffinityTerm)
	}
	for _, t := range terms {
		o.AllowInvalidLabelValueInSelector = o.AllowInvalidLabelValueInSelector ||
			len(validation.ValidatePodAffinityTermSelector(t, false, nil)) > 0
	}
}

// templateOptions is podOptions for a template; either may be nil.
func templateOptions(old *core.PodTemplateSpec) validation.PodValidationOptions {
	if old == nil {
		return podOptions(nil)
	}
	return podOptions(&old.Spec)
}

// containers yields all of a pod's containers: init, ordinary, ephemeral.
func containers(spec *core.PodSpec) func(yield func(*core.Container) bool) {
	return func(yield func(*core.Container) bool) {
		pods.VisitContainersWithPath(spec, field.NewPath("spec"), func(c *core.Container, _ *field.Path) bool { return yield(c) })
	}
}

// indivisible reports whether an amount of huge pages is not a whole number of pages.
func indivisible(list core.ResourceList) bool {
	for name, q := range list {
		if helper.IsHugePageResourceName(name) && !helper.IsHugePageResourceValueDivisible(name, q) {
			return true
		}
	}
	return false
}

// sysAdminUnescalated reports whether CAP_SYS_ADMIN is set without privilege escalation.
func sysAdminUnescalated(s *core.SecurityContext) bool {
	if s == nil || s.Capabilities == nil || s.AllowPrivilegeEscalation != nil && *s.AllowPrivilegeEscalation {
		return false
	}
	for _, c := range s.Capabilities.Add {
		if c == "CAP_SYS_ADMIN" {
			return true
		}
	}
	return false
}
