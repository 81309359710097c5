// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package tokensecrets

import corev1 "k8s.io/api/core/v1"

// references calls f with the names of the secrets that a pod refers to; some may come twice.
func references(p *corev1.PodSpec, f func(name string)) {
	for _, r := range p.ImagePullSecrets {
		f(r.Name)
	}
	container := func(from []corev1.EnvFromSource, env []corev1.EnvVar) {
		for _, e := range from {
			if e.SecretRef != nil {
				f(e.SecretRef.Name)
			}
		}
		for _, e := range env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				f(e.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	for i := range p.InitContainers {
		container(p.InitContainers[i].EnvFrom, p.InitContainers[i].Env)
	}
	for i := range p.Containers {
		container(p.Containers[i].EnvFrom, p.Containers[i].Env)
	}
	for i := range p.EphemeralContainers {
		container(p.EphemeralContainers[i].EnvFrom, p.EphemeralContainers[i].Env)
	}
	for i := range p.Volumes {
		inVolume(&p.Volumes[i].VolumeSource, f)
	}
}

func inVolume(v *corev1.VolumeSource, f func(name string)) {
	local := func(r *corev1.LocalObjectReference) {
		if r != nil {
			f(r.Name)
		}
	}
	switch {
	case v.Secret != nil:
		f(v.Secret.SecretName)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if s := v.Projected.Sources[i].Secret; s != nil {
				f(s.Name)
			}
		}
	case v.AzureFile != nil:
		f(v.AzureFile.SecretName)
	case v.CephFS != nil:
		local(v.CephFS.SecretRef)
	case v.Cinder != nil:
		local(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		local(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		local(v.RBD.SecretRef)
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
