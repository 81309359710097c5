// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubernetesservice publishes the API server inside the cluster: the Service "kubernetes" in the namespace default, with the first
// address of the service range, and its Endpoints and EndpointSlice with the addresses at which the servers listen: of the one server, or
// of all that share a store.
package kubernetesservice

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const (
	name      = "kubernetes"
	namespace = metav1.NamespaceDefault
	// manager is the field manager of these writes: upstream's API server writes them itself.
	manager = "kube-apiserver"
)

// Name is the controller's name in --controllers.
const Name = "kubernetes-service-controller"

// Controller describes the loop.
func Controller() controllers.Controller {
	services := corev1.SchemeGroupVersion.WithResource("services")
	slices := discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
	return controllers.Controller{
		Name:    Name,
		Inputs:  []schema.GroupVersionResource{services, slices},
		Outputs: []schema.GroupVersionResource{services, slices, corev1.SchemeGroupVersion.WithResource("endpoints")},
		New:     build,
	}
}

type controller struct {
	client  kubernetes.Interface
	cluster controllers.Cluster

	mu      sync.Mutex
	servers []netip.Addr // in their order; empty: not known yet
	// corrected is set when the ports have been written once. Servers on one store that listen on several ports would write theirs for ever:
	// from then on a server writes ports only together with addresses, as kube-apiserver does.
	corrected bool
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	c := &controller{client: d.Client, cluster: d.Cluster}
	if !c.cluster.ServiceCIDR.IsValid() || !c.cluster.AdvertiseAddress.IsValid() {
		return controllers.RunnerFunc(func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}), nil
	}
	if c.cluster.AdvertisePort == 0 {
		c.cluster.AdvertisePort = 6443
	}
	queue := controllers.NewQueue[string](d, "kubernetes-service", 1)
	wake := func(o metav1.Object) {
		if o.GetName() == name && o.GetNamespace() == namespace {
			queue.Add(name)
		}
	}
	err := errors.Join(
		controllers.Subscribe(d, d.Informers.Core().V1().Services().Informer(), controllers.OnAny(wake)),
		controllers.Subscribe(d, d.Informers.Discovery().V1().EndpointSlices().Informer(), controllers.OnAny(wake)),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		if c.cluster.Servers == nil {
			c.servers = []netip.Addr{c.cluster.AdvertiseAddress}
		} else if !c.cluster.AdvertiseAddress.IsLoopback() { // no pod could reach it, and the API refuses it as an endpoint
			var holding sync.WaitGroup
			defer holding.Wait()
			holding.Go(func() {
				c.cluster.Servers.Hold(ctx, c.cluster.AdvertiseAddress, func(all []netip.Addr) {
					c.mu.Lock()
					c.servers = all
					c.mu.Unlock()
					queue.Add(name)
				})
			})
		}
		queue.Add(name)
		return queue.Run(ctx, func(ctx context.Context, _ string) error { return c.sync(ctx) })
	}), err
}

func (c *controller) sync(ctx context.Context) error {
	if err := c.service(ctx); err != nil {
		return fmt.Errorf("publish service: %w", err)
	}
	c.mu.Lock()
	servers := c.servers
	c.mu.Unlock()
	switch {
	case c.cluster.AdvertiseAddress.IsLoopback():
		c.corrected = c.cluster.Servers != nil
		return nil
	case len(servers) == 0:
		return nil
	}
	if err := c.endpoints(ctx, servers); err != nil {
		return fmt.Errorf("publish endpoints: %w", err)
	}
	if err := c.slice(ctx, servers); err != nil {
		return fmt.Errorf("publish endpoint slice: %w", err)
	}
	c.corrected = c.cluster.Servers != nil
	return nil
}

// ServiceAddress returns the address of the service "kubernetes" in a service range: the first.
func ServiceAddress(services netip.Prefix) netip.Addr { return services.Masked().Addr().Next() }

func (c *controller) service(ctx context.Context) error {
	api := c.client.CoreV1().Services(namespace)
	have, err := api.Get(ctx, name, metav1.GetOptions{})
	ports := []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443,
		TargetPort: intstr.FromInt32(int32(c.cluster.AdvertisePort))}}
	if err == nil {
		if c.corrected || len(have.Spec.Ports) == 1 && have.Spec.Ports[0].TargetPort == ports[0].TargetPort && have.Spec.Ports[0].Port == 443 {
			return nil
		}
		have.Spec.Ports = ports
		_, err = api.Update(ctx, have, metav1.UpdateOptions{FieldManager: manager})
		return err
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	address := ServiceAddress(c.cluster.ServiceCIDR).String()
	_, err = api.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace,
			Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"}},
		Spec: corev1.ServiceSpec{
			Ports:           ports,
			ClusterIP:       address,
			IPFamilyPolicy:  ptr.To(corev1.IPFamilyPolicySingleStack),
			SessionAffinity: corev1.ServiceAffinityNone,
			Type:            corev1.ServiceTypeClusterIP,
		},
	}, metav1.CreateOptions{FieldManager: manager})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (c *controller) endpoints(ctx context.Context, servers []netip.Addr) error {
	api := c.client.CoreV1().Endpoints(namespace)
	subsets := []corev1.EndpointSubset{{
		Ports: []corev1.EndpointPort{{Name: "https", Port: int32(c.cluster.AdvertisePort), Protocol: corev1.ProtocolTCP}},
	}}
	for _, at := range servers {
		subsets[0].Addresses = append(subsets[0].Addresses, corev1.EndpointAddress{IP: at.String()})
	}
	have, err := api.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, &corev1.Endpoints{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelSkipMirror: "true"}},
			Subsets:    subsets,
		}, metav1.CreateOptions{FieldManager: manager})
		return err
	case err != nil, equality.Semantic.DeepEqual(have.Subsets, subsets):
		return err
	case c.corrected && len(have.Subsets) == 1 && equality.Semantic.DeepEqual(have.Subsets[0].Addresses, subsets[0].Addresses):
		return nil
	}
	have.Subsets = subsets
	_, err = api.Update(ctx, have, metav1.UpdateOptions{FieldManager: manager})
	return err
}

func (c *controller) slice(ctx context.Context, servers []netip.Addr) error {
	api := c.client.DiscoveryV1().EndpointSlices(namespace)
	// The slice has one family. All servers choose the same: IPv4 where one of them has such an address.
	family := discoveryv1.AddressTypeIPv4
	if servers[0].Is6() {
		family = discoveryv1.AddressTypeIPv6
	}
	var endpoints []discoveryv1.Endpoint
	for _, at := range servers {
		if at.Is6() == servers[0].Is6() {
			endpoints = append(endpoints, discoveryv1.Endpoint{
				Addresses: []string{at.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			})
		}
	}
	ports := []discoveryv1.EndpointPort{{Name: ptr.To("https"), Protocol: ptr.To(corev1.ProtocolTCP),
		Port: ptr.To(int32(c.cluster.AdvertisePort))}}
	have, err := api.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: family, Endpoints: endpoints, Ports: ports,
		}, metav1.CreateOptions{FieldManager: manager})
		return err
	case err != nil:
		return err
	case have.AddressType != family: // the family cannot be changed; the deletion's event requeues it
		return api.Delete(ctx, name, metav1.DeleteOptions{})
	case equality.Semantic.DeepEqual(have.Endpoints, endpoints) && (c.corrected || equality.Semantic.DeepEqual(have.Ports, ports)):
		return nil
	}
	have.Endpoints, have.Ports = endpoints, ports
	_, err = api.Update(ctx, have, metav1.UpdateOptions{FieldManager: manager})
	return err
}
