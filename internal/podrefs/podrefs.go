// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podrefs finds the objects that a pod refers to by name in its namespace: Secrets, ConfigMaps, PersistentVolumeClaims,
// ResourceClaims and its ServiceAccount. The node authorizer, admission plug-ins and controllers decide by it which pods use an
// object, so a reference that it misses is a hole: its tests compare the tables below with the fields of the API's types.
//
// [Visit] is pure, keeps no reference to the pod, and is safe for concurrent use.
package podrefs

import corev1 "k8s.io/api/core/v1"

// Kind is the kind of an object that a pod refers to.
type Kind byte

// The kinds that pods refer to.
const (
	Secret Kind = iota
	ConfigMap
	PersistentVolumeClaim
	ServiceAccount
	ResourceClaim
)

// KindFor returns the kind of a resource of the core group, and false if no pod refers to objects of that resource.
func KindFor(resource string) (Kind, bool) {
	switch resource {
	case "secrets":
		return Secret, true
	case "configmaps":
		return ConfigMap, true
	case "persistentvolumeclaims":
		return PersistentVolumeClaim, true
	case "serviceaccounts":
		return ServiceAccount, true
	}
	return 0, false
}

// reference is a field that names an object: path is its Go path from T, name reads it.
type reference[T any] struct {
	path string
	kind Kind
	name func(*T) string
}

// envFrom, envVar, volume and projection are the fields by which a container or a volume names an object.
var (
	envFrom = []reference[corev1.EnvFromSource]{
		{"SecretRef.Name", Secret, func(e *corev1.EnvFromSource) string {
			if e.SecretRef == nil {
				return ""
			}
			return e.SecretRef.Name
		}},
		{"ConfigMapRef.Name", ConfigMap, func(e *corev1.EnvFromSource) string {
			if e.ConfigMapRef == nil {
				return ""
			}
			return e.ConfigMapRef.Name
		}},
	}
	envVar = []reference[corev1.EnvVarSource]{
		{"SecretKeyRef.Name", Secret, func(e *corev1.EnvVarSource) string {
			if e.SecretKeyRef == nil {
				return ""
			}
			return e.SecretKeyRef.Name
		}},
		{"ConfigMapKeyRef.Name", ConfigMap, func(e *corev1.EnvVarSource) string {
			if e.ConfigMapKeyRef == nil {
				return ""
			}
			return e.ConfigMapKeyRef.Name
		}},
	}
	volume = []reference[corev1.VolumeSource]{
		{"PersistentVolumeClaim.ClaimName", PersistentVolumeClaim, func(v *corev1.VolumeSource) string {
			if v.PersistentVolumeClaim == nil {
				return ""
			}
			return v.PersistentVolumeClaim.ClaimName
		}},
		{"Secret.SecretName", Secret, func(v *corev1.VolumeSource) string {
			if v.Secret == nil {
				return ""
			}
			return v.Secret.SecretName
		}},
		{"ConfigMap.Name", ConfigMap, func(v *corev1.VolumeSource) string {
			if v.ConfigMap == nil {
				return ""
			}
			return v.ConfigMap.Name
		}},
		{"AzureFile.SecretName", Secret, func(v *corev1.VolumeSource) string {
			if v.AzureFile == nil {
				return ""
			}
			return v.AzureFile.SecretName
		}},
		{"CephFS.SecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.CephFS == nil {
				return ""
			}
			return local(v.CephFS.SecretRef)
		}},
		{"Cinder.SecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.Cinder == nil {
				return ""
			}
			return local(v.Cinder.SecretRef)
		}},
		{"FlexVolume.SecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.FlexVolume == nil {
				return ""
			}
			return local(v.FlexVolume.SecretRef)
		}},
		{"RBD.SecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.RBD == nil {
				return ""
			}
			return local(v.RBD.SecretRef)
		}},
		{"ScaleIO.SecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.ScaleIO == nil {
				return ""
			}
			return local(v.ScaleIO.SecretRef)
		}},
		{"ISCSI.SecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.ISCSI == nil {
				return ""
			}
			return local(v.ISCSI.SecretRef)
		}},
		{"StorageOS.SecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.StorageOS == nil {
				return ""
			}
			return local(v.StorageOS.SecretRef)
		}},
		{"CSI.NodePublishSecretRef.Name", Secret, func(v *corev1.VolumeSource) string {
			if v.CSI == nil {
				return ""
			}
			return local(v.CSI.NodePublishSecretRef)
		}},
	}
	projection = []reference[corev1.VolumeProjection]{
		{"Secret.Name", Secret, func(p *corev1.VolumeProjection) string {
			if p.Secret == nil {
				return ""
			}
			return p.Secret.Name
		}},
		{"ConfigMap.Name", ConfigMap, func(p *corev1.VolumeProjection) string {
			if p.ConfigMap == nil {
				return ""
			}
			return p.ConfigMap.Name
		}},
	}
)

func local(r *corev1.LocalObjectReference) string {
	if r == nil {
		return ""
	}
	return r.Name
}

// visitReferences calls visit for each field of an object that names one.
func visitReferences[T any](references []reference[T], object *T, visit func(Kind, string)) {
	for i := range references {
		if name := references[i].name(object); name != "" {
			visit(references[i].kind, name)
		}
	}
}

// Visit calls visit for each object that a pod refers to; it may visit an object more than once. Empty names are no references.
// A pod without a service account name refers to none, although the API server will give it the account "default".
func Visit(pod *corev1.Pod, visit func(kind Kind, name string)) {
	if pod.Spec.ServiceAccountName != "" {
		visit(ServiceAccount, pod.Spec.ServiceAccountName)
	}
	for i := range pod.Spec.ImagePullSecrets {
		if name := pod.Spec.ImagePullSecrets[i].Name; name != "" {
			visit(Secret, name)
		}
	}
	for i := range pod.Spec.InitContainers {
		visitEnvironment(pod.Spec.InitContainers[i].EnvFrom, pod.Spec.InitContainers[i].Env, visit)
	}
	for i := range pod.Spec.Containers {
		visitEnvironment(pod.Spec.Containers[i].EnvFrom, pod.Spec.Containers[i].Env, visit)
	}
	for i := range pod.Spec.EphemeralContainers {
		visitEnvironment(pod.Spec.EphemeralContainers[i].EnvFrom, pod.Spec.EphemeralContainers[i].Env, visit)
	}
	for i := range pod.Spec.Volumes {
		visitVolume(pod, &pod.Spec.Volumes[i], visit)
	}
	for i := range pod.Spec.ResourceClaims {
		if name := resourceClaim(pod, &pod.Spec.ResourceClaims[i]); name != "" {
			visit(ResourceClaim, name)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil && s.ResourceClaimName != "" {
		visit(ResourceClaim, s.ResourceClaimName)
	}
}

func visitEnvironment(from []corev1.EnvFromSource, env []corev1.EnvVar, visit func(Kind, string)) {
	for i := range from {
		visitReferences(envFrom, &from[i], visit)
	}
	for i := range env {
		if env[i].ValueFrom != nil {
			visitReferences(envVar, env[i].ValueFrom, visit)
		}
	}
}

func visitVolume(pod *corev1.Pod, v *corev1.Volume, visit func(Kind, string)) {
	visitReferences(volume, &v.VolumeSource, visit)
	if v.Ephemeral != nil && v.PersistentVolumeClaim == nil {
		visit(PersistentVolumeClaim, pod.Name+"-"+v.Name) // the name that the ephemeral volume controller gives the claim
	}
	if v.Projected == nil {
		return
	}
	for i := range v.Projected.Sources {
		visitReferences(projection, &v.Projected.Sources[i], visit)
	}
}

// resourceClaim returns the name of a pod's claim. It is empty while the claim has not been made, and if it never will be.
func resourceClaim(pod *corev1.Pod, c *corev1.PodResourceClaim) string {
	if c.ResourceClaimName != nil {
		return *c.ResourceClaimName
	}
	if c.ResourceClaimTemplateName == nil {
		return ""
	}
	for i := range pod.Status.ResourceClaimStatuses {
		if s := &pod.Status.ResourceClaimStatuses[i]; s.Name == c.Name && s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	return ""
}

// HasSecrets reports whether a pod refers to a Secret.
func HasSecrets(pod *corev1.Pod) bool { return has(pod, Secret) }

// HasConfigMaps reports whether a pod refers to a ConfigMap.
func HasConfigMaps(pod *corev1.Pod) bool { return has(pod, ConfigMap) }

func has(pod *corev1.Pod, want Kind) bool {
	found := false
	Visit(pod, func(k Kind, _ string) { found = found || k == want })
	return found
}

// RefersTo reports whether a pod refers to the named object, also by what the API server adds to pods: the account "default" where
// the pod names none, and the cluster's certificate authority.
func RefersTo(pod *corev1.Pod, kind Kind, name string) bool {
	found := false
	Visit(pod, func(k Kind, n string) { found = found || k == kind && n == name })
	return found || kind == ServiceAccount && pod.Spec.ServiceAccountName == "" && name == "default" ||
		kind == ConfigMap && name == "kube-root-ca.crt"
}
