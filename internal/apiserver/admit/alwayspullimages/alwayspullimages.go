// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package alwayspullimages is the AlwaysPullImages plug-in: the node pulls every container's image each time, so that only
// pods with the credentials use private images. It is off by default.
package alwayspullimages

import (
	"context"
	"iter"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "AlwaysPullImages" }

// Mutate sets the pull policy of all images of a pod to Always.
func (plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	pod, err := concerned(a)
	if err != nil || pod == nil {
		return err
	}
	for p := range policies(pod) {
		*p = corev1.PullAlways
	}
	return nil
}

// Validate rejects a pod whose pull policies a later mutator changed.
func (plugin) Validate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	pod, err := concerned(a)
	if err != nil || pod == nil {
		return err
	}
	var errs []error
	for p, path := range policies(pod) {
		if *p != corev1.PullAlways {
			errs = append(errs, admit.Forbidden(a, field.NotSupported(path(), *p, []string{string(corev1.PullAlways)})))
		}
	}
	return errors.NewAggregate(errs)
}

// concerned returns the pod, or nil if the request is not for a pod or brings no new image.
func concerned(a *admit.Attributes) (*corev1.Pod, error) {
	if !a.Is("", "pods", "") || a.Operation != admit.Create && a.Operation != admit.Update {
		return nil, nil
	}
	pod, old, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return nil, apierrors.NewBadRequest("Resource was marked with kind Pod but was unable to be converted") // upstream's words
	}
	if old == nil {
		return pod, nil
	}
	had := map[string]bool{}
	for image := range images(old) {
		had[image] = true
	}
	for image := range images(pod) {
		if !had[image] {
			return pod, nil
		}
	}
	return nil, nil
}

// policies yields the pull policies of all containers and image volumes with their field paths.
func policies(pod *corev1.Pod) iter.Seq2[*corev1.PullPolicy, func() *field.Path] {
	return func(yield func(*corev1.PullPolicy, func() *field.Path) bool) {
		spec := field.NewPath("spec")
		for _, list := range []struct {
			name       string
			containers []corev1.Container
		}{{"initContainers", pod.Spec.InitContainers}, {"containers", pod.Spec.Containers}} {
			for i := range list.containers {
				if !yield(&list.containers[i].ImagePullPolicy, func() *field.Path { return spec.Child(list.name).Index(i).Child("imagePullPolicy") }) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(&pod.Spec.EphemeralContainers[i].ImagePullPolicy,
				func() *field.Path { return spec.Child("ephemeralContainers").Index(i).Child("imagePullPolicy") }) {
				return
			}
		}
		for i := range pod.Spec.Volumes {
			if v := pod.Spec.Volumes[i].Image; v != nil && !yield(&v.PullPolicy,
				func() *field.Path { return spec.Child("volumes").Index(i).Child("image", "pullPolicy") }) {
				return
			}
		}
	}
}

// images yields the images of all containers.
func images(pod *corev1.Pod) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range containers {
				if !yield(containers[i].Image) {
					return
				}
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(pod.Spec.EphemeralContainers[i].Image) {
				return
			}
		}
	}
}
