// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serviceaccount

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// enforced reports whether pods of the account may use only the secrets that it lists.
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
			return fmt.Errorf("volume with secret.secretName=\"%s\" is not allowed because service account %s does not reference that secret",
				v.Secret.SecretName, account.Name)
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
			return fmt.Errorf("imagePullSecrets[%d].name=\"%s\" is not allowed because service account %s does not reference that imagePullSecret",
				i, s.Name, account.Name)
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
