// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package sharedobjects

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// Clientset returns a clientset whose watches of pods and nodes share the server's objects, if the server is in this process: they must
// not be changed, and have all stored fields. Informers that read with it use [DropManagedFields] as their transform.
func Clientset(c kubernetes.Interface) kubernetes.Interface { return &clientset{c} }

// DropManagedFields is a transform for informers: it removes the managed fields of objects that are not shared.
func DropManagedFields(obj any) (any, error) {
	switch obj.(type) {
	case *corev1.Pod, *corev1.Node:
		return obj, nil
	}
	return DropAllManagedFields(obj)
}

// DropAllManagedFields is a transform for informers that share nothing with the server: it removes managed fields, which no reader here
// needs, to save memory.
func DropAllManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok && o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

type clientset struct{ kubernetes.Interface }

// CoreV1 returns the client for the kinds that are shared, and others.
func (c *clientset) CoreV1() typedcorev1.CoreV1Interface { return core{c.Interface.CoreV1()} }

type core struct{ typedcorev1.CoreV1Interface }

// Pods returns the client for a namespace's pods.
func (c core) Pods(namespace string) typedcorev1.PodInterface {
	return pods{c.CoreV1Interface.Pods(namespace), c.RESTClient(), namespace}
}

// Nodes returns the client for nodes.
func (c core) Nodes() typedcorev1.NodeInterface {
	return nodes{c.CoreV1Interface.Nodes(), c.RESTClient()}
}

type pods struct {
	typedcorev1.PodInterface
	client    rest.Interface
	namespace string
}

// Watch watches pods, which are shared with the server.
func (p pods) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	request := p.client.Get().NamespaceIfScoped(p.namespace, p.namespace != "").Resource("pods")
	return watchOf(ctx, request, ahead, o, p.PodInterface.Watch)
}

type nodes struct {
	typedcorev1.NodeInterface
	client rest.Interface
}

// Watch watches nodes, which are shared with the server.
func (n nodes) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return watchOf(ctx, n.client.Get().Resource("nodes"), ahead, o, n.NodeInterface.Watch)
}

func watchOf(ctx context.Context, request *rest.Request, ahead int, o metav1.ListOptions,
	otherwise func(context.Context, metav1.ListOptions) (watch.Interface, error)) (watch.Interface, error) {
	o.Watch = true
	request.SpecificallyVersionedParams(&o, scheme.ParameterCodec, corev1.SchemeGroupVersion)
	if o.TimeoutSeconds != nil {
		request.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return receive(ctx, request, ahead, func() (watch.Interface, error) { return otherwise(ctx, o) })
}
