// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/durable"
)

func listen(ctx context.Context, s *settings) (net.Listener, error) {
	if s.origin != nil {
		return s.origin.listener, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(s.host, s.port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: the port is taken by another process", net.JoinHostPort(s.host, s.port))
	case err != nil:
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// port returns the listener's port.
func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

// loadCertificates loads or creates the cluster's certificates and keys. The server's certificate is also valid for the addresses in more.
func loadCertificates(s *settings, more []string) (*serving.Material, error) {
	if s.origin != nil {
		return s.origin.material, nil
	}
	hosts := []string{
		"localhost", "kubernetes", "kubernetes.default", serviceName, "kubernetes.default.svc.cluster.local",
		"127.0.0.1", "::1", s.serviceCIDRs[0].Addr().Next().String(),
	}
	hosts = append(hosts, more...)
	if at := s.APIServer.Serving.AdvertiseAddress; at != "" {
		hosts = append(hosts, at)
	}
	if s.servingConfigured() {
		hosts = append(hosts, serving.LoopbackName)
	}
	if ip, err := netip.ParseAddr(s.host); s.host != "" && (err != nil || !ip.IsUnspecified()) {
		hosts = append(hosts, s.host)
	} else if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
				hosts = append(hosts, n.IP.String())
			}
		}
	}
	dir := ""
	if s.DataDir != "" {
		dir = filepath.Join(s.DataDir, "pki")
	}
	material, err := serving.LoadOrCreate(dir, hosts, serving.Options{})
	if err != nil {
		return nil, fmt.Errorf("load certificates: %w", err)
	}
	if err := material.Timely(time.Now()); err != nil {
		s.Logger.Warn("Clients will refuse the server's certificate: correct the clock, or make a new authority", "error", err)
	}
	return material, nil
}

// makeAccess creates the administrator's access to the server on a listener.
func makeAccess(s *settings, l net.Listener, material *serving.Material) (a access, err error) {
	host := s.host
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	a.url = "https://" + net.JoinHostPort(host, strconv.Itoa(port(l)))
	at := serving.Endpoint{URL: a.url, Authorities: material.CA.CertPEM}
	if material.Certificates != nil {
		at.ServerName = serving.LoopbackName // gets the certificate that these authorities verify
		if len(s.signing.rootCA) > 0 {       // nodes that join trust the same
			at.Authorities = slices.Concat(at.Authorities, s.signing.rootCA)
		}
	}
	a.admin = &rest.Config{Host: a.url, QPS: -1, TLSClientConfig: rest.TLSClientConfig{
		CAData: at.Authorities, ServerName: at.ServerName, CertData: material.Admin.CertPEM, KeyData: material.Admin.KeyPEM,
	}}
	a.endpoint, a.identity = at, material.Admin
	if s.origin != nil { // Cluster.Kubeconfig of a fork makes its own
		return a, nil
	}
	text, err := serving.Kubeconfig(at, material.Admin)
	a.kubeconfig = func() []byte { return text }
	return a, err
}

// at returns the same access to a fork, on a listener of loopback.
func (a access) at(l net.Listener) access {
	host := "127.0.0.1"
	a.url = "https://" + net.JoinHostPort(host, strconv.Itoa(port(l)))
	a.admin = rest.CopyConfig(a.admin)
	a.admin.Host, a.endpoint.URL = a.url, a.url
	endpoint, identity := a.endpoint, a.identity
	a.kubeconfig = func() []byte {
		text, err := serving.Kubeconfig(endpoint, identity)
		if err != nil {
			panic(err) // what it encodes was encoded for the first cluster
		}
		return text
	}
	return a
}

func writeKubeconfig(path string, kubeconfig []byte) error {
	if err := durable.Write(path, 0o600, kubeconfig); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}

// advertised returns the address at which other hosts, pods among them, reach the server. Unless it is configured, it is no loopback
// address where the machine has another.
func (a *assembly) advertised() netip.AddrPort {
	at, err := netip.ParseAddr(a.settings.host)
	switch {
	case a.settings.advertised.IsValid():
		at = a.settings.advertised
	case len(a.forPods.Addresses) > 0:
		at = a.forPods.Addresses[0]
	case err != nil || at.IsUnspecified() || at.IsLoopback():
		at = hostAddress()
	}
	return netip.AddrPortFrom(at, uint16(port(a.listener)))
}

// hostAddress returns this machine's IPv4 address on the way to other networks, which kube-apiserver chooses, too. Without a default route
// it is the first one that other hosts can reach, 127.0.0.1 if there is none.
func hostAddress() netip.Addr {
	if chosen, err := utilnet.ChooseHostInterface(); err == nil {
		if ip, ok := netip.AddrFromSlice(chosen); ok && ip.Unmap().Is4() {
			return ip.Unmap()
		}
	}
	if addrs, err := net.InterfaceAddrs(); err == nil {
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok || n.IP.IsLoopback() || n.IP.IsLinkLocalUnicast() {
				continue
			}
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap().Is4() {
				return ip.Unmap()
			}
		}
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
