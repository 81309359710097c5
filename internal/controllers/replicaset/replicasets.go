// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package replicaset

import (
	"context"
	"errors"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Controller describes the loop over replica sets.
func Controller() controllers.Controller {
	sets := appsv1.SchemeGroupVersion.WithResource("replicasets")
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	return controllers.Controller{
		Name:      "replicaset-controller",
		Account:   "replicaset-controller",
		Component: "replicaset-controller",
		Inputs:    []schema.GroupVersionResource{sets, pods},
		Outputs:   []schema.GroupVersionResource{sets, pods},
		Syncs:     &controllers.Syncs{Flag: "concurrent-replicaset-syncs", Default: 5},
		New:       replicaSets,
	}
}

func replicaSets(d *controllers.Deps) (controllers.Runner, error) {
	sets := d.Informers.Apps().V1().ReplicaSets()
	lister, index := sets.Lister(), sets.Informer().GetIndexer()
	as := func(rs *appsv1.ReplicaSet) set { return set{rs, rs} }
	c, err := newController(d, "replicaset", source{
		kind:        appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
		terminating: true,
		get: func(namespace, name string) (set, error) {
			rs, err := lister.ReplicaSets(namespace).Get(name)
			return as(rs), err
		},
		list: func(namespace string) ([]set, error) {
			all, err := lister.ReplicaSets(namespace).List(labels.Everything())
			out := make([]set, len(all))
			for i, rs := range all {
				out[i] = as(rs)
			}
			return out, err
		},
		fresh: func(ctx context.Context, namespace, name string) (metav1.Object, error) {
			return d.Client.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		write: func(ctx context.Context, s set, status appsv1.ReplicaSetStatus) error {
			update := s.ReplicaSet.DeepCopy()
			update.Status = status
			_, err := d.Client.AppsV1().ReplicaSets(s.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{})
			return err
		},
		siblings: func(ref *metav1.OwnerReference) ([]set, error) {
			all, err := workload.Children[*appsv1.ReplicaSet](index, &metav1.ObjectMeta{UID: ref.UID}, false)
			out := make([]set, len(all))
			for i, rs := range all {
				out[i] = as(rs)
			}
			return out, err
		},
	})
	return c, errors.Join(err,
		workload.IndexByController(sets.Informer()),
		controllers.Subscribe(d, sets.Informer(), controllers.Handler[*appsv1.ReplicaSet]{
			Add:    func(rs *appsv1.ReplicaSet) { c.changed(nil, rs) },
			Update: func(before, updated *appsv1.ReplicaSet) { c.changed(before, updated) },
			Delete: func(rs *appsv1.ReplicaSet) { c.gone(rs) },
		}),
	)
}
