// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/extension/controller"
)

// greeter is a controller: each namespace has a config map greeting. The built-in controllers share the informer.
func greeter() controller.Controller {
	return controller.Controller{Name: "greeter", New: func(d *controller.Deps) (controller.Runner, error) {
		names := make(chan string, 1000)
		err := d.Subscribe(d.Informers.Core().V1().Namespaces().Informer(), cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			names <- obj.(*corev1.Namespace).Name
		}})
		return controller.RunnerFunc(func(ctx context.Context) error {
			for {
				select {
				case name := <-names:
					m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "greeting", Labels: map[string]string{"team": "greeter"}}}
					_, err := d.Client.CoreV1().ConfigMaps(name).Create(ctx, m, metav1.CreateOptions{})
					if err != nil && !apierrors.IsAlreadyExists(err) {
						return err // the controller is started again after a pause
					}
				case <-ctx.Done():
					return nil
				}
			}
		}), err
	}}
}
