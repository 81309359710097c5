// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package serviceaccount ensures that each namespace has the service account "default", which pods use that name no other.
package serviceaccount

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const name = "default"

// Controller describes the loop.
func Controller() controllers.Controller {
	accounts := corev1.SchemeGroupVersion.WithResource("serviceaccounts")
	return controllers.Controller{
		Name:    "serviceaccount-controller",
		Account: "service-account-controller",
		Inputs:  []schema.GroupVersionResource{accounts, corev1.SchemeGroupVersion.WithResource("namespaces")},
		Outputs: []schema.GroupVersionResource{accounts},
		New:     build,
	}
}

type controller struct {
	client     kubernetes.Interface
	namespaces listers.NamespaceLister
	accounts   listers.ServiceAccountLister
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	namespaces, accounts := d.Informers.Core().V1().Namespaces(), d.Informers.Core().V1().ServiceAccounts()
	c := &controller{client: d.Client, namespaces: namespaces.Lister(), accounts: accounts.Lister()}
	queue := controllers.NewQueue[string](d, "serviceaccount", 2)
	err := errors.Join(
		controllers.Subscribe(d, namespaces.Informer(), controllers.Handler[*corev1.Namespace]{
			Add:    func(ns *corev1.Namespace) { queue.Add(ns.Name) },
			Update: func(_, ns *corev1.Namespace) { queue.Add(ns.Name) },
		}),
		controllers.Subscribe(d, accounts.Informer(), controllers.Handler[*corev1.ServiceAccount]{
			Delete: func(account *corev1.ServiceAccount) { queue.Add(account.Namespace) },
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return queue.Run(ctx, c.sync) }), err
}

func (c *controller) sync(ctx context.Context, namespace string) error {
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return nil
	} else if err != nil {
		return fmt.Errorf("get namespace: %w", err)
	}
	if _, err := c.accounts.ServiceAccounts(namespace).Get(name); !apierrors.IsNotFound(err) {
		return err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	_, err = c.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
