// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/util/proxy"

	"github.com/mortise-dev/mortise/resource"
)

// Endpoints finds a ready endpoint of a service, each time a random one, so that no service proxy is needed on the way.
// A service of type ExternalName is the host that it names, such as a process on this machine.
type Endpoints struct {
	// Backend returns where services are stored; it is asked at each call.
	Backend func() resource.Backend
	// Context bounds the reads.
	Context context.Context
}

var _ Resolver = Endpoints{}

// ResolveEndpoint returns https://host:port of an endpoint; an API error when there is no such service, port or endpoint.
func (e Endpoints) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	b := e.Backend()
	obj, err := b.Get(e.Context, schema.GroupResource{Resource: "services"}, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "service"}, name) // upstream's words
	}
	if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("service %s/%s is a %T", namespace, name, obj)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port)))}, nil
	}
	portName, found := "", false
	for _, p := range svc.Spec.Ports {
		if p.Port == port {
			portName, found = p.Name, true
		}
	}
	if !found {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, name))
	}
	all, err := b.List(e.Context, schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}, namespace)
	if err != nil {
		return nil, err
	}
	var slices []*discoveryv1.EndpointSlice
	for _, obj := range all {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] == name {
			slices = append(slices, s)
		}
	}
	family := corev1.IPFamilyUnknown
	if len(svc.Spec.IPFamilies) > 0 {
		family = svc.Spec.IPFamilies[0]
	}
	host, err := proxy.RandomEndpoint(name, slices, portName, family, nil)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: host}, nil
}
