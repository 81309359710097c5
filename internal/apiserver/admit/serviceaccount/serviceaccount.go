// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package serviceaccount is the ServiceAccount plug-in: it sets a pod's service account, "default" unless the pod names
// another, checks that it exists, and mounts its token, the cluster's certificate authority and its namespace where
// clients look for them.
package serviceaccount

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/podrefs"
	"github.com/mortise-dev/mortise/resource"
)

const (
	defaultAccount = "default"
	volumePrefix   = "kube-api-access-"
	mountPath      = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenSeconds   = 3607
	mirrorPod      = corev1.MirrorPodAnnotationKey
	// patience is how long a pod waits for the default account of a new namespace.
	patience = 1500 * time.Millisecond
)

// Options are the plug-in's settings.
type Options struct {
	Suffix func() string // of the token volume's name; nil: five random letters
}

// New makes the plug-in.
func New(o Options) admit.Plugin {
	if o.Suffix == nil {
		o.Suffix = func() string { return utilrand.String(5) }
	}
	return &plugin{suffix: o.Suffix}
}

type plugin struct{ suffix func() string }

func (*plugin) Name() string { return "ServiceAccount" }

// Handles implements [admit.Filter].
func (*plugin) Handles(a *admit.Attributes) bool {
	_, ok := concerned(a)
	return ok
}

// Mutate sets a new pod's account, token volume and image pull secrets. It does not change mirror pods.
func (p *plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod, ok := concerned(a)
	if !ok || a.Operation != admit.Create {
		return nil
	}
	if isMirror(pod) {
		return validateMirror(a, pod)
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
		pod.Spec.DeprecatedServiceAccount = defaultAccount
	}
	account, err := find(ctx, b, a, pod)
	if err != nil {
		return err
	}
	if automounts(account, pod) {
		p.mount(pod)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 && len(account.ImagePullSecrets) > 0 {
		pod.Spec.ImagePullSecrets = append([]corev1.LocalObjectReference(nil), account.ImagePullSecrets...)
	}
	return limit(a, account, pod)
}

// Validate checks what later mutators may have changed.
func (p *plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	pod, ok := concerned(a)
	if !ok {
		return nil
	}
	switch {
	case a.Operation == admit.Update && a.Subresource == "ephemeralcontainers":
		account, err := find(ctx, b, a, pod)
		if err != nil || !enforced(account) {
			return err
		}
		return checkEphemeral(account, pod) // upstream answers 500 here
	case a.Operation != admit.Create:
		return nil
	case isMirror(pod):
		return validateMirror(a, pod)
	}
	account, err := find(ctx, b, a, pod)
	if err != nil {
		return err
	}
	return limit(a, account, pod)
}

func concerned(a *admit.Attributes) (*corev1.Pod, bool) {
	if !a.Is("", "pods", "") && !a.Is("", "pods", "ephemeralcontainers") {
		return nil, false
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	return pod, ok && pod != nil
}

func isMirror(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[mirrorPod]
	return ok
}

// validateMirror rejects mirror pods that reference service accounts, secrets or their tokens.
func validateMirror(a *admit.Attributes, pod *corev1.Pod) error {
	if pod.Spec.ServiceAccountName != "" {
		return admit.Forbidden(a, errors.New("a mirror pod may not reference service accounts"))
	}
	if podrefs.HasSecrets(pod) {
		return admit.Forbidden(a, errors.New("a mirror pod may not reference secrets"))
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			if s.ServiceAccountToken != nil {
				return admit.Forbidden(a, errors.New("a mirror pod may not use ServiceAccountToken volume projections"))
			}
		}
	}
	return nil
}

// find returns the pod's account. A controller creates the default account right after its namespace, so find waits a
// little for it if the backend can wait.
func find(ctx context.Context, b resource.Backend, a *admit.Attributes, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	name := pod.Spec.ServiceAccountName
	if name == "" {
		return nil, admit.Forbidden(a, fmt.Errorf("no service account specified for pod %s/%s", a.Namespace, pod.Name))
	}
	accounts := schema.GroupResource{Resource: "serviceaccounts"}
	obj, err := b.Get(ctx, accounts, a.Namespace, name)
	if waits, ok := b.(resource.Awaiter); ok && apierrors.IsNotFound(err) && name == defaultAccount {
		short, cancel := context.WithTimeout(ctx, patience)
		if o, failed := waits.Await(short, accounts, a.Namespace, name); failed == nil {
			obj, err = o, nil
		}
		cancel()
	}
	if apierrors.IsNotFound(err) {
		err = apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccount"}, name)
		if bad := admit.CheckName(name); bad != nil {
			err = bad
		}
	}
	if err != nil {
		// Not wrapped: a 403 of the look-up itself is not this plug-in's response.
		return nil, admit.Forbidden(a, fmt.Errorf("error looking up service account %s/%s: %v", a.Namespace, name, err)) //nolint:errorlint
	}
	account, ok := obj.(*corev1.ServiceAccount)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("service account is a %T", obj))
	}
	return account, nil
}

func automounts(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	if pod.Spec.AutomountServiceAccountToken != nil {
		return *pod.Spec.AutomountServiceAccountToken
	}
	return account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken
}

// mount adds the token volume to every container that mounts nothing else at that path.
func (p *plugin) mount(pod *corev1.Pod) {
	name := ""
	for _, v := range pod.Spec.Volumes {
		if strings.HasPrefix(v.Name, volumePrefix) {
			name = v.Name
			break
		}
	}
	present := name != ""
	if !present {
		name = volumePrefix + p.suffix()
	}
	used := false
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if !hasMount(&containers[i]) {
				containers[i].VolumeMounts = append(containers[i].VolumeMounts,
					corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: mountPath})
				used = true
			}
		}
	}
	if used && !present {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenSource()}})
	}
}

func hasMount(c *corev1.Container) bool {
	for _, m := range c.VolumeMounts {
		if m.MountPath == mountPath {
			return true
		}
	}
	return false
}

func tokenSource() *corev1.ProjectedVolumeSource {
	mode, seconds := corev1.ProjectedVolumeSourceDefaultMode, int64(tokenSeconds)
	return &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
				Path:     "namespace",
				FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
			}}}},
		},
	}
}
