// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"hash/maphash"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

// podParts has parts of pods that were decoded lately. Pods of one template differ by little more than names and times: shared, the rest of
// a pod takes half of the memory. Clusters have far more pods than other objects.
type podParts struct {
	seed    maphash.Seed
	buffers sync.Pool // of *[]byte

	texts       alike[string]
	flags       alike[*bool]
	numbers     alike[*int32]
	seconds     alike[*int64]
	preemptions alike[*corev1.PreemptionPolicy]
	labels      alike[map[string]string]
	annotations alike[map[string]string]
	selectors   alike[map[string]string]
	owners      alike[encoded[[]metav1.OwnerReference]]
	managers    alike[[]metav1.ManagedFieldsEntry]
	containers  alike[encoded[[]corev1.Container]]
	inits       alike[encoded[[]corev1.Container]]
	volumes     alike[encoded[[]corev1.Volume]]
	tolerations alike[encoded[[]corev1.Toleration]]
	spreads     alike[encoded[[]corev1.TopologySpreadConstraint]]
	conditions  alike[encoded[[]corev1.PodCondition]]
	affinities  alike[encoded[*corev1.Affinity]]
	securities  alike[encoded[*corev1.PodSecurityContext]]
}

var decodedPodParts = &podParts{seed: maphash.MakeSeed()}

// share has an object that stays cached share its parts with others, if it is a pod. The object itself is not shared yet.
func (s *podParts) share(hub resource.Object) {
	pod, ok := hub.(*corev1.Pod)
	if !ok {
		return
	}
	meta, spec, status := &pod.ObjectMeta, &pod.Spec, &pod.Status
	for _, text := range []*string{
		&meta.Namespace, &meta.GenerateName, &spec.NodeName, &spec.SchedulerName, &spec.ServiceAccountName, &spec.DeprecatedServiceAccount,
		&spec.PriorityClassName, (*string)(&spec.DNSPolicy), (*string)(&spec.RestartPolicy), (*string)(&status.Phase),
		(*string)(&status.QOSClass), &status.HostIP,
	} {
		if *text != "" {
			*text = sameValue(s, &s.texts, *text)
		}
	}
	meta.Labels = sameTexts(s, &s.labels, meta.Labels)
	meta.Annotations = sameTexts(s, &s.annotations, meta.Annotations)
	meta.OwnerReferences = sameList(s, &s.owners, meta.OwnerReferences)
	meta.ManagedFields = s.sameManagers(meta.ManagedFields)

	spec.Containers = sameList(s, &s.containers, spec.Containers)
	spec.InitContainers = sameList(s, &s.inits, spec.InitContainers)
	spec.Volumes = sameList(s, &s.volumes, spec.Volumes)
	spec.Tolerations = sameList(s, &s.tolerations, spec.Tolerations)
	spec.TopologySpreadConstraints = sameList(s, &s.spreads, spec.TopologySpreadConstraints)
	spec.NodeSelector = sameTexts(s, &s.selectors, spec.NodeSelector)
	spec.Affinity = sameMessage(s, &s.affinities, spec.Affinity)
	spec.SecurityContext = sameMessage(s, &s.securities, spec.SecurityContext)
	spec.TerminationGracePeriodSeconds = samePointer(s, &s.seconds, spec.TerminationGracePeriodSeconds)
	spec.AutomountServiceAccountToken = samePointer(s, &s.flags, spec.AutomountServiceAccountToken)
	spec.EnableServiceLinks = samePointer(s, &s.flags, spec.EnableServiceLinks)
	spec.Priority = samePointer(s, &s.numbers, spec.Priority)
	spec.PreemptionPolicy = samePointer(s, &s.preemptions, spec.PreemptionPolicy)

	status.Conditions = sameList(s, &s.conditions, status.Conditions)
}

// sameManagers returns the managed fields that are shared by pods that were written by the same managers at the same times. Their field
// sets are shared already: equal ones are one, see [fieldSets].
func (s *podParts) sameManagers(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	if len(entries) == 0 {
		return entries
	}
	var hash maphash.Hash
	hash.SetSeed(s.seed)
	for i := range entries {
		_, _ = hash.WriteString(entries[i].Manager)
		if at := entries[i].Time; at != nil {
			maphash.WriteComparable(&hash, at.Unix())
		}
	}
	return s.managers.same(hash.Sum64(), slices.Clip(entries), func(known *[]metav1.ManagedFieldsEntry) bool {
		return slices.EqualFunc(*known, entries, func(a, b metav1.ManagedFieldsEntry) bool {
			at := a.Time.Equal(b.Time)
			a.Time, b.Time = nil, nil
			return at && a == b
		})
	})
}
