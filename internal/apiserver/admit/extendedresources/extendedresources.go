// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package extendedresources is the ExtendedResourceToleration plug-in: a pod that requests an extended resource (a device)
// gets a toleration of the taint with that resource's name. It is off by default.
package extendedresources

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "ExtendedResourceToleration" }

// Mutate adds the tolerations, sorted by resource name.
func (plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !a.Is("", "pods", "") || a.Operation != admit.Create && a.Operation != admit.Update {
		return nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected *core.Pod but got %T", a.Object)) // upstream's words
	}
	asked := map[corev1.ResourceName]bool{}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				if extended(name) {
					asked[name] = true
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		add(pod, corev1.Toleration{Key: string(name), Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	return nil
}

// add replaces the tolerations that t matches with t, or appends t.
func add(pod *corev1.Pod, t corev1.Toleration) {
	all := slices.Clone(pod.Spec.Tolerations)
	found := false
	for i := range all {
		if t.MatchToleration(&all[i]) {
			if equality.Semantic.DeepEqual(t, all[i]) {
				return
			}
			all[i], found = t, true
		}
	}
	if !found {
		all = append(all, t)
	}
	pod.Spec.Tolerations = all
}

// extended reports whether a resource is not one of Kubernetes' own.
func extended(name corev1.ResourceName) bool {
	s := string(name)
	return strings.Contains(s, "/") && !strings.Contains(s, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix) &&
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+s)) == 0
}
