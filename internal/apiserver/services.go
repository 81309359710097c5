// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// backendServices are the services of the registry's backend besides objects.
type backendServices struct {
	objects func() resource.Backend
	issue   func(ctx context.Context, c resource.TokenClaims) (resource.IssuedToken, error) // nil: the server has no key
	connect func(node *corev1.Node, host string) http.RoundTripper                          // nil: the server has no certificate
}

var _ resource.Services = (*backendServices)(nil)

// IssueToken signs a service-account token.
func (s *backendServices) IssueToken(ctx context.Context, c resource.TokenClaims) (resource.IssuedToken, error) {
	if s.issue == nil {
		return resource.IssuedToken{}, apierrors.NewServiceUnavailable("this server has no key to sign tokens with")
	}
	return s.issue(ctx, c)
}

// Node returns the address of the named node's agent, and the transport for it.
func (s *backendServices) Node(ctx context.Context, name string) (*url.URL, http.RoundTripper, error) {
	obj, err := s.objects().Get(ctx, schema.GroupResource{Resource: "nodes"}, "", name)
	if err != nil {
		return nil, nil, err
	}
	n, ok := obj.(*corev1.Node)
	if !ok {
		return nil, nil, fmt.Errorf("find node %s: it is a %T", name, obj)
	}
	host := ""
	for _, want := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName} {
		for _, a := range n.Status.Addresses {
			if host == "" && a.Type == want {
				host = a.Address
			}
		}
	}
	port := int(n.Status.DaemonEndpoints.KubeletEndpoint.Port)
	if port == 0 {
		port = 10250
	}
	if host == "" {
		return nil, nil, fmt.Errorf("no preferred addresses found; known addresses: %v", n.Status.Addresses) // upstream's words
	}
	if s.connect == nil {
		return nil, nil, apierrors.NewServiceUnavailable("this server has no way to its nodes")
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(port))}, s.connect(n, host), nil
}
