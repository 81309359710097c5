// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"hash/maphash"

	corev1 "k8s.io/api/core/v1"
)

// state tells two states of a pod apart whose references differ. The references of a bound pod change with its ephemeral
// containers and with the claims that are made for it; else only a new pod of the same name brings others.
func state(seed maphash.Seed, p *corev1.Pod) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	part := func(s string) {
		_, _ = h.WriteString(s) // a hash takes everything
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
		part(deref(s.ResourceClaimName))
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		part(s.ResourceClaimName)
	}
	return h.Sum64()
}

// references calls f with all that a pod refers to in its namespace; some of it may come twice.
func references(p *corev1.Pod, f func(k kind, name string)) {
	tell := func(k kind, name string) {
		if name != "" {
			f(k, name)
		}
	}
	tell(accounts, p.Spec.ServiceAccountName)
	for _, r := range p.Spec.ImagePullSecrets {
		tell(secrets, r.Name)
	}
	for i := range p.Spec.InitContainers {
		environment(p.Spec.InitContainers[i].EnvFrom, p.Spec.InitContainers[i].Env, tell)
	}
	for i := range p.Spec.Containers {
		environment(p.Spec.Containers[i].EnvFrom, p.Spec.Containers[i].Env, tell)
	}
	for i := range p.Spec.EphemeralContainers {
		environment(p.Spec.EphemeralContainers[i].EnvFrom, p.Spec.EphemeralContainers[i].Env, tell)
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Ephemeral != nil && v.PersistentVolumeClaim == nil {
			tell(claims, p.Name+"-"+v.Name)
			continue
		}
		inVolume(&v.VolumeSource, tell)
	}
	for i := range p.Spec.ResourceClaims {
		tell(resourceClaims, resourceClaim(p, &p.Spec.ResourceClaims[i]))
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		tell(resourceClaims, s.ResourceClaimName)
	}
}

func environment(from []corev1.EnvFromSource, env []corev1.EnvVar, tell func(k kind, name string)) {
	for _, e := range from {
		if e.SecretRef != nil {
			tell(secrets, e.SecretRef.Name)
		}
		if e.ConfigMapRef != nil {
			tell(configMaps, e.ConfigMapRef.Name)
		}
	}
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			tell(secrets, r.Name)
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			tell(configMaps, r.Name)
		}
	}
}

func inVolume(v *corev1.VolumeSource, tell func(k kind, name string)) {
	local := func(r *corev1.LocalObjectReference) {
		if r != nil {
			tell(secrets, r.Name)
		}
	}
	switch {
	case v.PersistentVolumeClaim != nil:
		tell(claims, v.PersistentVolumeClaim.ClaimName)
	case v.AzureFile != nil:
		tell(secrets, v.AzureFile.SecretName)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			s := &v.Projected.Sources[i]
			if s.Secret != nil {
				tell(secrets, s.Secret.Name)
			}
			if s.ConfigMap != nil {
				tell(configMaps, s.ConfigMap.Name)
			}
		}
	case v.RBD != nil:
		local(v.RBD.SecretRef)
	case v.Secret != nil:
		tell(secrets, v.Secret.SecretName)
	case v.ConfigMap != nil:
		tell(configMaps, v.ConfigMap.Name)
	case v.ScaleIO != nil:
		local(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		local(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		local(v.StorageOS.SecretRef)
	case v.CSI != nil:
		local(v.CSI.NodePublishSecretRef)
	}
}

// resourceClaim is the name of a pod's claim; empty while it has not been made, or when it never will be.
func resourceClaim(p *corev1.Pod, c *corev1.PodResourceClaim) string {
	if c.ResourceClaimName != nil {
		return *c.ResourceClaimName
	}
	if c.ResourceClaimTemplateName != nil {
		for i := range p.Status.ResourceClaimStatuses {
			if s := &p.Status.ResourceClaimStatuses[i]; s.Name == c.Name {
				return deref(s.ResourceClaimName)
			}
		}
	}
	return ""
}

// volumeSecrets calls f with the secrets that nodes read for a volume. Those that only controllers need are not among them.
func volumeSecrets(v *corev1.PersistentVolume, f func(namespace, name string)) {
	tell := func(namespace, name string) {
		if name != "" {
			f(namespace, name)
		}
	}
	// volumes from before there were namespaces in references mean the claim's
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
		namespace := deref(s.AzureFile.SecretNamespace)
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

// Reads says whether a pod refers to secrets, and to config maps, by its containers, its image pulls or its volumes.
func Reads(p *corev1.Pod) (anySecrets, anyConfigMaps bool) {
	references(p, func(k kind, _ string) {
		anySecrets = anySecrets || k == secrets
		anyConfigMaps = anyConfigMaps || k == configMaps
	})
	return anySecrets, anyConfigMaps
}

// referable are the resources of the core group that pods refer to by name in their namespace.
var referable = map[string]kind{"secrets": secrets, "configmaps": configMaps, "persistentvolumeclaims": claims, "serviceaccounts": accounts}

// Referable says whether pods refer to objects of a resource of the core group.
func Referable(name string) bool {
	_, ok := referable[name]
	return ok
}

// RefersTo says whether a pod refers to the named object of a [Referable] resource: also to the account and the authority that
// pods are given which name none.
func RefersTo(p *corev1.Pod, resource, name string) bool {
	want, found := referable[resource], false
	references(p, func(k kind, n string) { found = found || k == want && n == name })
	return found || want == accounts && p.Spec.ServiceAccountName == "" && name == "default" || want == configMaps && name == "kube-root-ca.crt"
}
