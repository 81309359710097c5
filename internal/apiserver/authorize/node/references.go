// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"hash/maphash"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/podrefs"
)

// state returns a hash that changes with a pod's references. The references of a bound pod change with its ephemeral
// containers and with the claims that are created for it. Any other change needs a new pod of the same name.
func state(seed maphash.Seed, p *corev1.Pod) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	part := func(s string) {
		_, _ = h.WriteString(s) // writing to a hash never fails
		_ = h.WriteByte(0)
	}
	part(p.Spec.NodeName)
	part(string(p.UID))
	for range p.Spec.EphemeralContainers {
		part("e")
	}
	for i := range p.Status.ResourceClaimStatuses {
		s := &p.Status.ResourceClaimStatuses[i]
		part(s.Name)
		part(ptr.Deref(s.ResourceClaimName, ""))
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		part(s.ResourceClaimName)
	}
	return h.Sum64()
}

// kindOf returns the graph's kind of a reference of a pod.
func kindOf(k podrefs.Kind) kind {
	switch k {
	case podrefs.Secret:
		return secrets
	case podrefs.ConfigMap:
		return configMaps
	case podrefs.PersistentVolumeClaim:
		return claims
	case podrefs.ServiceAccount:
		return accounts
	case podrefs.ResourceClaim:
		return resourceClaims
	}
	panic("node: a pod refers to an object of an unknown kind")
}

// volumeSecrets calls f with the secrets that nodes read for a volume. It omits those that only controllers need.
func volumeSecrets(v *corev1.PersistentVolume, f func(namespace, name string)) {
	tell := func(namespace, name string) {
		if name != "" {
			f(namespace, name)
		}
	}
	// references without a namespace, from before it was added, mean the claim's
	ref := func(r *corev1.SecretReference, orClaims bool) {
		switch {
		case r == nil:
		case r.Namespace == "" && orClaims:
			tell(v.Spec.ClaimRef.Namespace, r.Name)
		default:
			tell(r.Namespace, r.Name)
		}
	}
	s := &v.Spec.PersistentVolumeSource
	switch {
	case s.AzureFile != nil:
		namespace := ptr.Deref(s.AzureFile.SecretNamespace, "")
		if namespace == "" {
			namespace = v.Spec.ClaimRef.Namespace
		}
		tell(namespace, s.AzureFile.SecretName)
	case s.CephFS != nil:
		ref(s.CephFS.SecretRef, true)
	case s.Cinder != nil:
		ref(s.Cinder.SecretRef, false)
	case s.FlexVolume != nil:
		ref(s.FlexVolume.SecretRef, true)
	case s.RBD != nil:
		ref(s.RBD.SecretRef, true)
	case s.ScaleIO != nil:
		ref(s.ScaleIO.SecretRef, true)
	case s.ISCSI != nil:
		ref(s.ISCSI.SecretRef, true)
	case s.StorageOS != nil:
		if r := s.StorageOS.SecretRef; r != nil {
			tell(r.Namespace, r.Name)
		}
	case s.CSI != nil:
		ref(s.CSI.NodePublishSecretRef, false)
		ref(s.CSI.NodeStageSecretRef, false)
		ref(s.CSI.NodeExpandSecretRef, false)
	}
}
