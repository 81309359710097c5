// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podspec has the common parts of kinds that contain pods: dropping fields of disabled gates, defaults that depend on the whole
// pod, warnings, and setting conditions. It works on one object that the caller owns.
package podspec

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// SetCondition sets the condition of its type, and its transition time, in whole seconds, if the status changes. It keeps a zero probe
// time.
func SetCondition(status *corev1.PodStatus, c corev1.PodCondition) {
	c.LastTransitionTime = metav1.Unix(time.Now().Unix(), 0)
	for i := range status.Conditions {
		old := &status.Conditions[i]
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = old.ObservedGeneration
		}
		*old = c
		return
	}
	status.Conditions = append(status.Conditions, c)
}

// QOSClass returns the QoS class of a pod's resources.
func QOSClass(pod *corev1.Pod) corev1.PodQOSClass { return upstream.QOSClass(pod) }

// CheckTolerations validates tolerations outside of a pod.
func CheckTolerations(ts []corev1.Toleration, path *field.Path) field.ErrorList {
	return upstream.Tolerations(ts, path)
}

// MergeLabelKeys converts the label keys of affinity terms and spread constraints to requirements on the pod's own labels, so that the
// scheduler need not.
func MergeLabelKeys(pod *corev1.Pod) {
	if a := pod.Spec.Affinity; a != nil && upstream.Gate("MatchLabelKeysInPodAffinity") {
		if p := a.PodAffinity; p != nil {
			mergeTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, pod.Labels)
		}
		if p := a.PodAntiAffinity; p != nil {
			mergeTerms(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, pod.Labels)
		}
	}
	if upstream.Gate("MatchLabelKeysInPodTopologySpread") && upstream.Gate("MatchLabelKeysInPodTopologySpreadSelectorMerge") {
		for i := range pod.Spec.TopologySpreadConstraints {
			c := &pod.Spec.TopologySpreadConstraints[i]
			merge(c.LabelSelector, c.MatchLabelKeys, metav1.LabelSelectorOpIn, pod.Labels)
		}
	}
}

func mergeTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, labels map[string]string) {
	term := func(t *corev1.PodAffinityTerm) {
		merge(t.LabelSelector, t.MatchLabelKeys, metav1.LabelSelectorOpIn, labels)
		merge(t.LabelSelector, t.MismatchLabelKeys, metav1.LabelSelectorOpNotIn, labels)
	}
	for i := range preferred {
		term(&preferred[i].PodAffinityTerm)
	}
	for i := range required {
		term(&required[i])
	}
}

// merge adds a requirement for each key of the pod's labels. A nil selector matches nothing and stays nil.
func merge(selector *metav1.LabelSelector, keys []string, op metav1.LabelSelectorOperator, labels map[string]string) {
	if selector == nil {
		return
	}
	for _, key := range keys {
		if value, ok := labels[key]; ok {
			selector.MatchExpressions = append(selector.MatchExpressions,
				metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: []string{value}})
		}
	}
}

// SyncAppArmor copies AppArmor profiles from the deprecated annotations to the containers' fields, and returns warnings about those
// annotations.
func SyncAppArmor(pod *corev1.Pod) []string {
	if pod.Spec.OS != nil && pod.Spec.OS.Name == corev1.Windows {
		return nil
	}
	var ofPod *corev1.AppArmorProfile
	if pod.Spec.SecurityContext != nil {
		ofPod = pod.Spec.SecurityContext.AppArmorProfile
	}
	var warnings []string
	eachContainer(&pod.Spec, func(c *corev1.Container) {
		key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		annotation, ok := pod.Annotations[key]
		if !ok || c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
			return
		}
		profile := appArmorOf(annotation)
		if profile != nil && len(upstream.AppArmorProfile(profile)) > 0 {
			profile = nil
		}
		if profile != nil && same(profile, ofPod) {
			return
		}
		if profile != nil {
			if c.SecurityContext == nil {
				c.SecurityContext = &corev1.SecurityContext{}
			}
			c.SecurityContext.AppArmorProfile = profile
		}
		warnings = append(warnings, fmt.Sprintf(`%s: deprecated since v1.30; use the "appArmorProfile" field instead`,
			field.NewPath("metadata", "annotations").Key(key)))
	})
	return warnings
}

// appArmorOf returns the profile that an annotation names, or nil.
func appArmorOf(annotation string) *corev1.AppArmorProfile {
	switch {
	case annotation == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	case annotation == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	case len(annotation) > len(corev1.DeprecatedAppArmorBetaProfileNamePrefix) &&
		annotation[:len(corev1.DeprecatedAppArmorBetaProfileNamePrefix)] == corev1.DeprecatedAppArmorBetaProfileNamePrefix:
		name := annotation[len(corev1.DeprecatedAppArmorBetaProfileNamePrefix):]
		return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}

func same(a, b *corev1.AppArmorProfile) bool {
	if a == nil || b == nil {
		return a == b
	}
	local := func(p *corev1.AppArmorProfile) string {
		if p.LocalhostProfile == nil {
			return ""
		}
		return *p.LocalhostProfile
	}
	return a.Type == b.Type && local(a) == local(b)
}

// eachContainer calls f on every container: init, ordinary, ephemeral. Changes are kept.
func eachContainer(spec *corev1.PodSpec, f func(c *corev1.Container)) {
	for i := range spec.InitContainers {
		f(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		f(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		f((*corev1.Container)(&spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
}
