// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// target is the addresses of a server: HOST:PORT of each ready endpoint.
type target struct {
	epoch int64
	hosts []string
}

// host returns the HOST:PORT for the next call.
func (s *Service) host(ctx context.Context) (string, error) {
	e := s.entry
	epoch := e.epoch.Load() // loaded before the objects that it versions
	t := e.target.Load()
	if t == nil || t.epoch != epoch {
		hosts, err := s.aggregator.resolve(ctx, s.at)
		if err != nil {
			return "", err
		}
		t = &target{epoch, hosts}
		e.target.Store(t)
	}
	if len(t.hosts) == 1 {
		return t.hosts[0], nil
	}
	return t.hosts[rand.IntN(len(t.hosts))], nil
}

// resolve returns the addresses of a service.
func (a *Aggregator) resolve(ctx context.Context, at address) ([]string, error) {
	b := a.o.Backend()
	obj, err := b.Get(ctx, services, at.namespace, at.name)
	if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("service %s/%s is a %T", at.namespace, at.name, obj)
	}
	join := func(host string) []string { return []string{net.JoinHostPort(host, strconv.Itoa(int(at.port)))} }
	if svc.Spec.Type == corev1.ServiceTypeExternalName { // it may be a process on this machine
		return join(svc.Spec.ExternalName), nil
	}
	port := listens(svc, at.port)
	switch {
	case port == nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", at.port, svc.Name))
	case !a.o.ClusterIPs:
		slices, err := endpoints(ctx, b, at.reference)
		if err != nil {
			return nil, err
		}
		if hosts := ready(slices, port.Name, svc.Spec.IPFamilies); len(hosts) > 0 {
			return hosts, nil
		}
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", svc.Name))
	case svc.Spec.ClusterIP == corev1.ClusterIPNone:
		return nil, fmt.Errorf("cannot route to service with ClusterIP %q", corev1.ClusterIPNone)
	}
	return join(svc.Spec.ClusterIP), nil
}

// listens returns the service's port with that number; nil: it has none.
func listens(svc *corev1.Service, number int32) *corev1.ServicePort {
	for i, p := range svc.Spec.Ports {
		if p.Port == number {
			return &svc.Spec.Ports[i]
		}
	}
	return nil
}

// endpoints returns the endpoint slices of a service.
func endpoints(ctx context.Context, b Backend, r reference) ([]*discoveryv1.EndpointSlice, error) {
	all, err := b.List(ctx, endpointSlices, r.namespace)
	if err != nil {
		return nil, err
	}
	var out []*discoveryv1.EndpointSlice
	for _, obj := range all {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] == r.name {
			out = append(out, s)
		}
	}
	return out, nil
}

// ready returns the ready endpoints for a port as HOST:PORT: those of the service's first IP family, or of another if
// there are none.
func ready(slices []*discoveryv1.EndpointSlice, port string, families []corev1.IPFamily) []string {
	var first, other []string
	for _, s := range slices {
		to := &first
		if len(families) > 0 && s.AddressType != discoveryv1.AddressType(families[0]) {
			to = &other
		}
		for _, p := range s.Ports {
			if p.Name == nil || *p.Name != port || p.Port == nil {
				continue
			}
			for _, e := range s.Endpoints {
				if (e.Conditions.Ready == nil || *e.Conditions.Ready) && len(e.Addresses) > 0 {
					*to = append(*to, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	if len(first) == 0 {
		return other
	}
	return first
}
