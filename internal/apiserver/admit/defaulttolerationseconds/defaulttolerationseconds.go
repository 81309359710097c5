// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package defaulttolerationseconds is the DefaultTolerationSeconds plug-in: it adds tolerations, limited in time, of nodes
// that are not ready or unreachable to pods without such tolerations.
package defaulttolerationseconds

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// Options are the default toleration seconds. 0 evicts the pod immediately.
type Options struct{ NotReady, Unreachable int64 }

// Usually returns kube-apiserver's defaults.
func Usually() Options { return Options{NotReady: 300, Unreachable: 300} }

// New makes the plug-in.
func New(o Options) admit.Plugin { return plugin{o} }

type plugin struct{ o Options }

func (plugin) Name() string { return "DefaultTolerationSeconds" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return a.Is("", "pods", "") && (a.Operation == admit.Create || a.Operation == admit.Update)
}

// Mutate adds the tolerations that are missing, on create and on update.
func (p plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return nil
	}
	given := pod.Spec.Tolerations
	for _, taint := range []struct {
		key     string
		seconds int64
	}{{corev1.TaintNodeNotReady, p.o.NotReady}, {corev1.TaintNodeUnreachable, p.o.Unreachable}} {
		if !speaksOf(given, taint.key) {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
				Key: taint.key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &taint.seconds,
			})
		}
	}
	return nil
}

func speaksOf(given []corev1.Toleration, key string) bool {
	for _, t := range given {
		if (t.Key == key || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
