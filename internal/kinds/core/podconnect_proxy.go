// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	endpoints "k8s.io/apiserver/pkg/util/proxy"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/resource"
)

// podProxy, serviceProxy and nodeProxy proxy any HTTP request: to a pod's port, to a ready pod behind a service, to the node's agent or
// another of its ports. The name in the path may be NAME, NAME:PORT or SCHEME:NAME:PORT.
func podProxy(dial egress.Dial) resource.Subresource {
	return proxySubresource("PodProxyOptions", locatePod, ordinary(dial))
}

func serviceProxy(preferred corev1.IPFamily, dial egress.Dial) resource.Subresource {
	return proxySubresource("ServiceProxyOptions", locateService(preferred), ordinary(dial))
}

func nodeProxy(dial egress.Dial) resource.Subresource {
	return proxySubresource("NodeProxyOptions", locateNode, ordinary(dial))
}

var errNotAllowed = apierrors.NewBadRequest("address not allowed")

// ordinary returns the transport for targets that are addressed by IP and have certificates of their own, which cannot be verified here. It
// also rejects connections to this host's own services when it dials, since a node's name may resolve differently by then.
func ordinary(dial egress.Dial) *http.Transport {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second,
			ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
				if host, _, err := net.SplitHostPort(address); err != nil || !allowed(net.ParseIP(host)) {
					return errNotAllowed
				}
				return nil
			}}).DialContext
	}
	return &http.Transport{DialContext: egress.Bounded(dial), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
}

// locate returns the target of requests for a name. A nil transport means the ordinary one.
type locate func(ctx context.Context, b resource.Backend, namespace, id string) (*url.URL, http.RoundTripper, error)

func proxySubresource(kind string, where locate, ordinary http.RoundTripper) resource.Subresource {
	return resource.Subresource{
		Name: "proxy", GroupVersionKind: corev1.SchemeGroupVersion.WithKind(kind),
		Verbs: []string{"create", "delete", "get", "patch", "update"},
		Connect: &resource.Connect{
			TakesPath: true,
			Options:   proxyOptions(kind),
			Handler: func(ctx context.Context, b resource.Backend, namespace, name string, _ runtime.Object, path string) (http.Handler, error) {
				location, transport, err := where(ctx, b, namespace, name)
				if err != nil {
					return nil, err
				}
				if transport == nil {
					transport = ordinary
				}
				return hijackable(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, behind(r.URL.Path, name, path))
					proxy.NewUpgradeAwareHandler(location, transport, true, false, statusResponder{}).ServeHTTP(w, r)
				})), nil
			},
		},
	}
}

// behind returns the part of the request's path after NAME/proxy, with its slash, if any; path if there is no such part.
func behind(requestPath, name, path string) string {
	if _, rest, ok := strings.Cut(requestPath, "/"+name+"/proxy"); ok {
		return rest
	}
	if path != "" && !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return path
}

func locatePod(ctx context.Context, b resource.Backend, namespace, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	pod, err := getPod(ctx, b, namespace, name)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range pod.Spec.Containers {
		if port == "" && len(c.Ports) > 0 {
			port = strconv.Itoa(int(c.Ports[0].ContainerPort))
		}
	}
	ip := ""
	if len(pod.Status.PodIPs) > 0 {
		ip = pod.Status.PodIPs[0].IP
	}
	if !allowed(net.ParseIP(ip)) {
		return nil, nil, errNotAllowed
	}
	if strings.Trim(port, "0123456789") != "" {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q: %q is no port number", id, port))
	}
	host := net.JoinHostPort(ip, port)
	if port == "" {
		host = strings.TrimSuffix(host, ":")
	}
	return &url.URL{Scheme: scheme, Host: host}, nil, nil
}

// locateService finds a ready endpoint, of the preferred family first.
func locateService(preferred corev1.IPFamily) locate {
	return func(ctx context.Context, b resource.Backend, namespace, id string) (*url.URL, http.RoundTripper, error) {
		return locateEndpoint(ctx, b, namespace, id, preferred)
	}
}

func locateEndpoint(ctx context.Context, b resource.Backend, namespace, id string, preferred corev1.IPFamily) (*url.URL, http.RoundTripper,
	error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	if number, err := strconv.ParseInt(port, 10, 64); err == nil { // find the name of the port with that number
		obj, err := b.Get(ctx, schema.GroupResource{Resource: "services"}, namespace, name)
		if err != nil {
			return nil, nil, err
		}
		svc, ok := obj.(*corev1.Service)
		if !ok {
			return nil, nil, fmt.Errorf("read service: it is a %T", obj)
		}
		i := slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return int64(p.Port) == number })
		if i < 0 {
			return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
		}
		port = svc.Spec.Ports[i].Name
	}
	list, err := b.List(ctx, schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}, namespace)
	if err != nil {
		return nil, nil, err
	}
	var of []*discoveryv1.EndpointSlice
	for _, obj := range list {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] == name {
			of = append(of, s)
		}
	}
	host, err := endpoints.RandomEndpoint(name, of, port, preferred, func(e *discoveryv1.Endpoint) bool {
		return isPodAddress(ctx, b, namespace, e)
	})
	if err != nil {
		return nil, nil, err
	}
	return &url.URL{Scheme: scheme, Host: host}, nil, nil
}

// isPodAddress reports whether an endpoint is a pod of the namespace, at the pod's own address. The proxy refuses others: otherwise users
// who can write an EndpointSlice could reach any address.
func isPodAddress(ctx context.Context, b resource.Backend, namespace string, e *discoveryv1.Endpoint) bool {
	if e.TargetRef == nil || e.TargetRef.Namespace != namespace {
		return false
	}
	pod, err := getPod(ctx, b, namespace, e.TargetRef.Name)
	if err != nil {
		return false
	}
	return len(e.Addresses) > 0 && allowed(net.ParseIP(e.Addresses[0])) &&
		slices.ContainsFunc(pod.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == e.Addresses[0] })
}

func locateNode(ctx context.Context, b resource.Backend, _, id string) (*url.URL, http.RoundTripper, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	agent, transport, err := b.Node(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	if port == "" || port == agent.Port() {
		own := *agent
		return &own, transport, nil
	}
	if err := proxyable(ctx, agent.Hostname()); err != nil {
		return nil, nil, err
	}
	return &url.URL{Scheme: scheme, Host: net.JoinHostPort(agent.Hostname(), port)}, nil, nil
}

// proxyable refuses a host with an address of this host's own services. It also refuses a name without addresses.
func proxyable(ctx context.Context, host string) error {
	addresses, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	for _, a := range addresses {
		if !allowed(a.IP) {
			return errNotAllowed
		}
	}
	return nil
}

// allowed reports whether the proxy may connect to an address. It refuses loopback and link-local addresses, where this host's own services
// and those of its cloud are, whatever an object's status contains.
func allowed(ip net.IP) bool { return ip.IsGlobalUnicast() }
