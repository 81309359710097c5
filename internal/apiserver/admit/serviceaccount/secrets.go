// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serviceaccount

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// enforced says that pods of the account may use the secrets that it lists and no others.
func enforced(account *corev1.ServiceAccount) bool {
	on, err := strconv.ParseBool(account.Annotations["kubernetes.io/enforce-mountable-secrets"])
	return err == nil && on
}

func limit(a *admit.Attributes, account *corev1.ServiceAccount, pod *corev1.Pod) error {
	if !enforced(account) {
		return nil
	}
	return refuse(a, checkSecrets(account, pod))
}

func refuse(a *admit.Attributes, err error) error {
	if err == nil {
		return nil
	}
	return admit.Forbidden(a, err)
}

func checkSecrets(account *corev1.ServiceAccount, pod *corev1.Pod) error {
	allowed := mountable(account)
	for _, v := range pod.Spec.Volumes {
		if v.Secret != nil && !allowed[v.Secret.SecretName] {
			return fmt.Errorf("volume with secret.secretName=\"%s\" is not allowed because service account %s does not reference that secret", v.Secret.SecretName, account.Name)
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if err := checkEnv("init container", c.Name, c.Env, c.EnvFrom, allowed, account.Name); err != nil {
			return err
		}
	}
	for _, c := range pod.Spec.Containers {
		if err := checkEnv("container", c.Name, c.Env, c.EnvFrom, allowed, account.Name); err != nil {
			return err
		}
	}
	pulls := map[string]bool{}
	for _, s := range account.ImagePullSecrets {
		pulls[s.Name] = true
	}
	for i, s := range pod.Spec.ImagePullSecrets {
		if !pulls[s.Name] {
			return fmt.Errorf("imagePullSecrets[%d].name=\"%s\" is not allowed because service account %s does not reference that imagePullSecret", i, s.Name, account.Name)
		}
	}
	return nil
}

func checkEphemeral(account *corev1.ServiceAccount, pod *corev1.Pod) error {
	allowed := mountable(account)
	for _, c := range pod.Spec.EphemeralContainers {
		if err := checkEnv("ephemeral container", c.Name, c.Env, c.EnvFrom, allowed, account.Name); err != nil {
			return err
		}
	}
	return nil
}

func checkEnv(what, name string, env []corev1.EnvVar, from []corev1.EnvFromSource, allowed map[string]bool, account string) error {
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && !allowed[e.ValueFrom.SecretKeyRef.Name] {
			return fmt.Errorf("%s %s with envVar %s referencing secret.secretName=\"%s\" is not allowed because service account %s does not reference that secret", what, name, e.Name, e.ValueFrom.SecretKeyRef.Name, account)
		}
	}
	for _, e := range from {
		if e.SecretRef != nil && !allowed[e.SecretRef.Name] {
			return fmt.Errorf("%s %s with envFrom referencing secret.secretName=\"%s\" is not allowed because service account %s does not reference that secret", what, name, e.SecretRef.Name, account)
		}
	}
	return nil
}

func mountable(account *corev1.ServiceAccount) map[string]bool {
	names := make(map[string]bool, len(account.Secrets))
	for _, s := range account.Secrets {
		names[s.Name] = true
	}
	return names
}

// namesSecret says whether the pod refers to any secret by name.
func namesSecret(pod *corev1.Pod) bool {
	for _, s := range pod.Spec.ImagePullSecrets {
		if s.Name != "" {
			return true
		}
	}
	for _, c := range pod.Spec.InitContainers {
		if envSecret(c.Env, c.EnvFrom) {
			return true
		}
	}
	for _, c := range pod.Spec.Containers {
		if envSecret(c.Env, c.EnvFrom) {
			return true
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if envSecret(c.Env, c.EnvFrom) {
			return true
		}
	}
	for i := range pod.Spec.Volumes {
		if volumeSecret(&pod.Spec.Volumes[i].VolumeSource) {
			return true
		}
	}
	return false
}

func envSecret(env []corev1.EnvVar, from []corev1.EnvFromSource) bool {
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Name != "" {
			return true
		}
	}
	for _, e := range from {
		if e.SecretRef != nil && e.SecretRef.Name != "" {
			return true
		}
	}
	return false
}

func volumeSecret(v *corev1.VolumeSource) bool {
	ref := func(r *corev1.LocalObjectReference) bool { return r != nil && r.Name != "" }
	switch {
	case v.Secret != nil:
		return v.Secret.SecretName != ""
	case v.AzureFile != nil:
		return v.AzureFile.SecretName != ""
	case v.CephFS != nil:
		return ref(v.CephFS.SecretRef)
	case v.Cinder != nil:
		return ref(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		return ref(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		return ref(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		return ref(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		return ref(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		return ref(v.StorageOS.SecretRef)
	case v.CSI != nil:
		return ref(v.CSI.NodePublishSecretRef)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil && s.Secret.Name != "" {
				return true
			}
		}
	}
	return false
}
