// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// cronTabs is a controller: for each CronTab (examples/60-crontab-crd.yaml) it keeps a config map of the same name with its schedule.
type cronTabs struct{ client.Client }

// Reconcile makes the config map what the CronTab says. It looks at what there is and not at what has happened, so that it may be called
// again at any time.
func (c *cronTabs) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	tab := &unstructured.Unstructured{}
	tab.SetAPIVersion("stable.example.com/v1")
	tab.SetKind("CronTab")
	if err := c.Get(ctx, r.NamespacedName, tab); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	schedule, _, err := unstructured.NestedString(tab.Object, "spec", "cronSpec")
	if err != nil {
		return ctrl.Result{}, err
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name}}
	_, err = controllerutil.CreateOrUpdate(ctx, c.Client, m, func() error {
		m.Data = map[string]string{"schedule": schedule}
		return controllerutil.SetControllerReference(tab, m, c.Scheme()) // the garbage collector deletes the map with the CronTab
	})
	return ctrl.Result{}, err
}
