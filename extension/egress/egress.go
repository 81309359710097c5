// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package egress dials the server's outgoing connections: directly, or through a proxy between the control plane's network
// and that of nodes and pods, such as konnectivity.
//
// An EgressSelectorConfiguration, kube-apiserver's own file, read by kube-apiserver's own rules ([Load]), selects the
// proxies. Services and nodes belong to the selection "cluster"; webhooks called by URL belong to "controlplane". The third
// name, etcd, is validated and not used. The protocols are HTTP CONNECT over TCP, with or without TLS, or over a unix
// socket, and konnectivity's gRPC over a unix socket. The extension ledger records each connection as one call, under
// "cluster" or "controlplane", and upstream's metrics count it.
//
// A [Selector] is immutable; it and its dialers are safe for concurrent use.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package egress

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/server/egressselector/metrics"

	"github.com/mortise-dev/mortise/extension"
)

// Dial makes a connection. Where it is nil the ordinary way is meant.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Selector selects the dialer of a connection. Nil: it always dials directly.
type Selector struct {
	controlPlane, cluster Dial
}

// ControlPlane dials addresses that the control plane gets as URLs, such as webhooks; nil: directly.
func (s *Selector) ControlPlane() Dial {
	if s == nil {
		return nil
	}
	return s.controlPlane
}

// Cluster is the way to nodes, pods and services; nil: the ordinary one.
func (s *Selector) Cluster() Dial {
	if s == nil {
		return nil
	}
	return s.cluster
}

// After returns a selector of the dialers that find returns. Addresses for which it returns false go the way of s.
func (s *Selector) After(find func(address string) (Dial, bool)) *Selector {
	after := func(next Dial) Dial {
		if next == nil {
			next = straight
		}
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			if dial, ok := find(address); ok {
				return dial(ctx, network, address)
			}
			return next(ctx, network, address)
		}
	}
	return &Selector{controlPlane: after(s.ControlPlane()), cluster: after(s.Cluster())}
}

// Load reads a file and makes its Selector; an empty name: nil. The ledger l records the calls. The errors are upstream's
// words.
func Load(file string, l *extension.Ledger) (*Selector, error) {
	if file == "" {
		return nil, nil
	}
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("egress-selector-config-file %s does not exist", file)
	}
	c, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read egress selector config: %w", err) // upstream's words
	}
	if errs := egressselector.ValidateEgressSelectorConfiguration(c); len(errs) > 0 {
		return nil, fmt.Errorf("failed to validate egress selector configuration: %w", errs.ToAggregate()) // upstream's words
	}
	s := &Selector{}
	for _, e := range c.EgressSelections {
		name := strings.ToLower(e.Name)
		d, err := dialer(e.Connection)
		if err != nil {
			// upstream's words
			return nil, fmt.Errorf("failed to setup egress selector: failed to create dialer for egressSelection %q: %w", name, err)
		}
		dial := straight
		if d != nil && name != "etcd" {
			d.ledger, d.ref = l, extension.Ref{Point: extension.EgressProxy, Name: name}
			l.Register(d.ref, file)
			dial = d.dial
		}
		switch name {
		case "controlplane":
			s.controlPlane = dial
		case "cluster":
			s.cluster = dial
		}
	}
	return s, nil
}

// patience is the maximum time to establish a connection.
const patience = 30 * time.Second

// straight is the way without a proxy.
func straight(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: patience, KeepAlive: patience}
	return d.DialContext(ctx, network, address)
}

// proxy is one that connections go through.
type proxy struct {
	protocol, transport string // as metrics name them
	network, address    string // of the proxy itself
	tls                 *tls.Config
	ledger              *extension.Ledger
	ref                 extension.Ref
}

// dialer makes a proxy of a connection that has been validated; nil: there is none.
func dialer(c apiserver.Connection) (*proxy, error) {
	p := &proxy{protocol: metrics.ProtocolHTTPConnect, transport: metrics.TransportUDS, network: "unix"}
	switch {
	case c.ProxyProtocol == apiserver.ProtocolDirect:
		return nil, nil
	case c.ProxyProtocol == apiserver.ProtocolGRPC:
		p.protocol, p.address = metrics.ProtocolGRPC, c.Transport.UDS.UDSName
	case c.Transport.UDS != nil:
		p.address = c.Transport.UDS.UDSName
	default:
		p.network, p.transport = "tcp", metrics.TransportTCP
		u, err := url.Parse(c.Transport.TCP.URL)
		if err != nil {
			return nil, fmt.Errorf("invalid proxy server url %q: %w", c.Transport.TCP.URL, err) // upstream's words
		}
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
		}
		p.address = net.JoinHostPort(u.Hostname(), port)
		if c.Transport.TCP.TLSConfig != nil {
			if p.tls, err = clientTLS(c.Transport.TCP.TLSConfig, u.Hostname()); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// clientTLS reads the client's credentials for the proxy and the CA that the proxy's certificate must have. The errors are
// upstream's words.
func clientTLS(c *apiserver.TLSConfig, host string) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
	if err != nil {
		return nil, fmt.Errorf("failed to read key pair %s & %s, got %w", c.ClientCert, c.ClientKey, err) // upstream's words
	}
	t := &tls.Config{Certificates: []tls.Certificate{own}, ServerName: host, MinVersion: tls.VersionTLS12}
	if c.TLSServerName != "" {
		t.ServerName = c.TLSServerName
	}
	if c.CABundle == "" {
		return t, nil
	}
	bundle, err := os.ReadFile(c.CABundle)
	if err != nil {
		return nil, fmt.Errorf("failed to read cert file %s, got %w", c.CABundle, err) // upstream's words
	}
	t.RootCAs = x509.NewCertPool()
	if !t.RootCAs.AppendCertsFromPEM(bundle) {
		return nil, errors.New("failed to append CA cert to the cert pool") // upstream's words
	}
	return t, nil
}

// dial connects to address through the proxy.
func (p *proxy) dial(ctx context.Context, _, address string) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	start := metrics.Metrics.Clock().Now()
	metrics.Metrics.ObserveDialStart(p.protocol, p.transport)
	stage := metrics.StageConnect
	_ = p.ledger.Call(ctx, p.ref, extension.Policy{}, func(ctx context.Context) error {
		if p.protocol == metrics.ProtocolGRPC {
			conn, err = p.tunnel(ctx, address, &stage)
		} else {
			conn, err = p.connect(ctx, address, &stage)
		}
		return err
	})
	if err != nil {
		metrics.Metrics.ObserveDialFailure(p.protocol, p.transport, stage)
		return nil, err
	}
	metrics.Metrics.ObserveDialLatency(metrics.Metrics.Clock().Now().Sub(start), p.protocol, p.transport)
	return conn, nil
}
