// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The owners of a claim decide how long it lives, and the garbage collector does the rest (KEP-1847):
//
//	whenDeleted  whenScaled   the pod's ordinal is wanted   the set was scaled below it
//	Retain       Retain       no owner                      no owner
//	Delete       Retain       the set                       the set
//	Retain       Delete       no owner                      the pod
//	Delete       Delete       the set                       the pod

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

func policy(set *appsv1.StatefulSet) (deleted, scaled bool) {
	p := set.Spec.PersistentVolumeClaimRetentionPolicy
	if p == nil {
		return false, false
	}
	return p.WhenDeleted == appsv1.DeletePersistentVolumeClaimRetentionPolicyType,
		p.WhenScaled == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

// owners returns the owner references that a pod's claim should have. off reports that it has others, and conflict that another controller
// owns it, so that the policy cannot be applied.
func owners(set *appsv1.StatefulSet, pod *corev1.Pod, c *corev1.PersistentVolumeClaim) (want []metav1.OwnerReference, off, conflict bool) {
	conflict = contested(set, pod, c)
	if stale(c, set, kind) || stale(c, pod, podKind) {
		return c.OwnerReferences, false, conflict // owners that are gone are left to the garbage collector
	}
	deleted, scaled := policy(set)
	var owner *metav1.OwnerReference
	switch {
	case conflict:
	case scaled && !within(set, pod):
		owner = metav1.NewControllerRef(pod, podKind)
	case deleted:
		owner = metav1.NewControllerRef(set, kind)
	}
	missing := owner != nil
	for _, ref := range c.OwnerReferences {
		switch {
		case !means(ref, set, kind) && !means(ref, pod, podKind):
			want = append(want, ref)
		case owner != nil && ref.UID == owner.UID && ref.Controller != nil && *ref.Controller:
			want, missing = append(want, ref), false
		default:
			off = true
		}
	}
	if missing {
		want, off = append(want, *owner), true
	}
	return want, off, conflict
}

// means reports whether a reference has an object's kind and name; it does not compare the UID.
func means(ref metav1.OwnerReference, o metav1.Object, k schema.GroupVersionKind) bool {
	return ref.APIVersion == k.GroupVersion().String() && ref.Kind == k.Kind && ref.Name == o.GetName()
}

// stale reports whether an earlier object of that name owns the claim.
func stale(c *corev1.PersistentVolumeClaim, o metav1.Object, k schema.GroupVersionKind) bool {
	return slices.ContainsFunc(c.OwnerReferences, func(ref metav1.OwnerReference) bool { return means(ref, o, k) && ref.UID != o.GetUID() })
}

// contested reports whether another controller owns a claim that the set or pod should own by the policy.
func contested(set *appsv1.StatefulSet, pod *corev1.Pod, c *corev1.PersistentVolumeClaim) bool {
	if deleted, scaled := policy(set); !deleted && !scaled {
		return false
	}
	for _, ref := range c.OwnerReferences {
		switch {
		case means(ref, set, kind):
			if ref.UID != set.GetUID() {
				return true
			}
		case means(ref, pod, podKind):
			if ref.UID != pod.GetUID() {
				return true
			}
		case ref.Controller != nil && *ref.Controller:
			return true
		}
	}
	return false
}

// blocked reports whether a pod cannot be created yet: a claim of its name will be deleted with the pod that owned it.
func blocked(set *appsv1.StatefulSet, pod *corev1.Pod, of func(name string) *corev1.PersistentVolumeClaim) bool {
	if _, scaled := policy(set); !scaled {
		return false
	}
	return slices.ContainsFunc(claims(set, pod), func(want claim) bool {
		c := of(want.object.Name)
		return c != nil && stale(c, pod, podKind)
	})
}
