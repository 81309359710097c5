// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubelet makes the API server's connections to kubelets, for logs, exec and nodes/NAME/proxy, with the server's own client
// certificate.
//
// A node reports its own address, so it must not be able to direct the server's certificate back to the server. A [Transports]
// knows the addresses on which the server listens ([Transports.Listens]). It makes no connection to them, and closes one on which
// an API server of the cluster presents its certificate, whatever its address.
//
// A node identifies itself by a certificate that the cluster's CA signed, or by a key that it has published on its Node
// ([servingkey.Annotation]). This is verified for each node separately, so that a node at another's address does not pass
// for it.
package kubelet

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/servingkey"
)

// Transports has a transport for each node. Its fields must not be changed once it is in use; its methods are safe for concurrent use.
type Transports struct {
	// Client is the client certificate that the server presents to nodes.
	Client tls.Certificate
	// Roots verify the nodes' serving certificates.
	Roots *x509.CertPool
	// Keys also accepts a certificate that is not trusted, if its key is the one that the node has published.
	Keys bool
	// Server is the server's own serving certificate, and CA the cluster's CA, which signs those of other servers.
	Server, CA *x509.Certificate
	// Dial makes connections through a proxy; nil: directly.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu        sync.Mutex
	listeners []netip.AddrPort
	byNode    map[string]*nodeTransport
}

// nodeTransport is the transport of one node. Nodes share no connections, even if they have the same address.
type nodeTransport struct {
	peer
	*http.Transport
}

// peer is the node that a connection is meant for.
type peer struct{ node, host, key string }

// most is the maximum number of nodes with cached connections.
const most = 10_000

var (
	errOwnAddress = errors.New("address not allowed: it is the API server's own")
	errOwnServer  = errors.New("address not allowed: an API server answers there")
	errOtherNode  = errors.New("another node answers there")
)

// To returns the transport for requests to a node, at one of its hosts. When the node publishes another key, connections
// are closed.
func (w *Transports) To(node *corev1.Node, host string) http.RoundTripper {
	to := peer{node: node.Name, host: host}
	if w.Keys {
		to.key = node.Annotations[servingkey.Annotation]
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.byNode[to.node]
	if before != nil && before.peer == to {
		return before.Transport
	}
	if before != nil {
		before.CloseIdleConnections()
	}
	if w.byNode == nil {
		w.byNode = map[string]*nodeTransport{}
	}
	for name, other := range w.byNode {
		if len(w.byNode) < most {
			break
		}
		other.CloseIdleConnections()
		delete(w.byNode, name)
	}
	made := &nodeTransport{to, &http.Transport{
		DialContext: egress.Bounded(w.dial),
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, //nolint:gosec // verify does it, which knows of published keys
			Certificates:       []tls.Certificate{w.Client}, MinVersion: tls.VersionTLS12,
			VerifyConnection: func(state tls.ConnectionState) error { return w.verify(to, state.PeerCertificates) },
		},
		ForceAttemptHTTP2: true, IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
	}}
	w.byNode[to.node] = made
	return made.Transport
}

// Listens adds an address on which the server listens.
func (w *Transports) Listens(a net.Addr) {
	at, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return // no address that a node could name
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.listeners = append(w.listeners, at)
}

// dial looks at each address that a name has, at the moment when it would be connected to.
func (w *Transports) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if w.Dial == nil {
		d := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second,
			ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
				return w.check(address)
			}}
		return d.DialContext(ctx, network, address)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	// The proxy resolves the name itself, so what this host makes of it is looked at only if it makes anything of it.
	found, _ := net.DefaultResolver.LookupHost(ctx, host)
	for _, one := range append(found, host) {
		if err := w.check(net.JoinHostPort(one, port)); err != nil {
			return nil, err
		}
	}
	return w.Dial(ctx, network, address)
}

// check refuses an address with a port of the server's on this host.
func (w *Transports) check(address string) error {
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil // a name, for a proxy
	}
	ip = ip.Unmap().WithZone("")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.listeners {
		if l.Port() == uint16(port) && (ip == l.Addr().Unmap().WithZone("") || local(ip)) {
			return errOwnAddress
		}
	}
	return nil
}

// local reports whether an address is of this host, or may be.
func local(ip netip.Addr) bool {
	if ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap().WithZone("") == ip {
			return true
		}
	}
	return false
}

// verify closes a connection to any peer that is not the node: an API server of the cluster, which an address translation
// may have led to, another node, which may have got the address, and a peer whose certificate is not trusted.
func (w *Transports) verify(to peer, shown []*x509.Certificate) error {
	if len(shown) == 0 {
		return errors.New("no certificate")
	}
	leaf := shown[0]
	if leaf.Equal(w.Server) || leaf.Subject.CommonName == w.Server.Subject.CommonName && leaf.CheckSignatureFrom(w.CA) == nil {
		return errOwnServer
	}
	if name, ok := strings.CutPrefix(leaf.Subject.CommonName, "system:node:"); ok && name != "" && name != to.node {
		return fmt.Errorf("node %s: %w: %s", to.node, errOtherNode, name)
	}
	if to.key != "" && servingkey.Of(leaf) == to.key {
		return nil
	}
	between := x509.NewCertPool()
	for _, c := range shown[1:] {
		between.AddCert(c)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: w.Roots, Intermediates: between,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	if err == nil && leaf.VerifyHostname(to.node) != nil {
		err = leaf.VerifyHostname(to.host)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("the serving certificate of node %s cannot be verified: set serverTLSBootstrap: true in its kubelet's configuration "+
		"and approve its request, or set --kubelet-certificate-authority to the CA that signed it: %w", to.node, err)
}
