// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package rootca publishes the ConfigMap kube-root-ca.crt in every namespace, from which pods read the API server's CA.
package rootca

import (
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const (
	name        = "kube-root-ca.crt"
	annotation  = "kubernetes.io/description"
	description = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Controller describes the loop.
func Controller() controllers.Controller {
	maps := corev1.SchemeGroupVersion.WithResource("configmaps")
	return controllers.Controller{
		Name:    "root-ca-certificate-publisher-controller",
		Account: "root-ca-cert-publisher",
		Inputs:  []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("namespaces")},
		Outputs: []schema.GroupVersionResource{maps},
		New:     build,
	}
}

type controller struct {
	client     kubernetes.Interface
	own        informers.SharedInformerFactory
	namespaces listers.NamespaceLister
	published  listers.ConfigMapLister
	queue      *controllers.Queue[string]
	data       map[string]string
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	if len(d.Cluster.Trusted()) == 0 {
		return controllers.RunnerFunc(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}), nil
	}
	// Watch only the ConfigMaps of this name, so that memory does not hold the others.
	own := informers.NewSharedInformerFactoryWithOptions(d.Watcher, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
	}))
	namespaces := d.Informers.Core().V1().Namespaces()
	c := &controller{
		client: d.Client, own: own, namespaces: namespaces.Lister(), published: own.Core().V1().ConfigMaps().Lister(),
		queue: controllers.NewQueue[string](d, "root-ca-certificate-publisher", 2),
		data:  map[string]string{"ca.crt": string(d.Cluster.Trusted())},
	}
	err := errors.Join(
		controllers.Subscribe(d, namespaces.Informer(), controllers.Handler[*corev1.Namespace]{
			Add:    func(ns *corev1.Namespace) { c.queue.Add(ns.Name) },
			Update: func(_, ns *corev1.Namespace) { c.queue.Add(ns.Name) },
		}),
		d.SubscribeLate(own.Core().V1().ConfigMaps().Informer(), func(o metav1.Object) {
			if o.GetName() == name {
				c.queue.Add(o.GetNamespace())
			}
		}),
	)
	return c, err
}

// Run reconciles until ctx ends.
func (c *controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer c.own.Shutdown()
	defer cancel()
	c.own.StartWithContext(ctx)
	select {
	case <-c.own.Core().V1().ConfigMaps().Informer().HasSyncedChecker().Done():
	case <-ctx.Done():
		return nil
	}
	return c.queue.Run(ctx, c.sync)
}

func (c *controller) sync(ctx context.Context, namespace string) error {
	ns, err := c.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && ns.Status.Phase == corev1.NamespaceTerminating {
		return nil
	} else if err != nil {
		return fmt.Errorf("get namespace: %w", err)
	}
	have, err := c.published.ConfigMaps(namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = c.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Annotations: map[string]string{annotation: description}},
			Data:       c.data,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	case err != nil:
		return fmt.Errorf("get config map: %w", err)
	case maps.Equal(have.Data, c.data) && have.Annotations[annotation] != "":
		return nil
	}
	update := have.DeepCopy()
	update.Data = c.data
	if update.Annotations == nil {
		update.Annotations = map[string]string{}
	}
	update.Annotations[annotation] = description
	_, err = c.client.CoreV1().ConfigMaps(namespace).Update(ctx, update, metav1.UpdateOptions{})
	return err
}
