// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/peerproxy"
)

// peering is how other servers of the cluster are reached, and reach this one.
type peering struct {
	authorities *x509.CertPool // of their serving certificates; nil: the cluster's own
	own         netip.AddrPort // not valid: the advertised address
}

// readPeering checks the settings.
func readPeering(o *options.Peers) (p peering, err error) {
	if (o.AdvertiseIP == "") != (o.AdvertisePort == "") {
		return p, errors.New("--peer-advertise-ip and --peer-advertise-port: one is of no use without the other")
	}
	if o.AdvertiseIP != "" {
		if p.own, err = netip.ParseAddrPort(net.JoinHostPort(o.AdvertiseIP, o.AdvertisePort)); err != nil {
			return p, fmt.Errorf("--peer-advertise-ip, --peer-advertise-port: %w", err)
		}
	}
	if o.CAFile == "" {
		return p, nil
	}
	pem, err := os.ReadFile(o.CAFile)
	if err != nil {
		return p, fmt.Errorf("--peer-ca-file: %w", err)
	}
	p.authorities = x509.NewCertPool()
	if !p.authorities.AppendCertsFromPEM(pem) {
		return p, fmt.Errorf("--peer-ca-file: %s holds no certificate", o.CAFile)
	}
	return p, nil
}

// peerAddress returns where the other servers of the cluster reach this one to forward requests.
func (a *assembly) peerAddress() netip.AddrPort {
	if a.peering.own.IsValid() {
		return a.peering.own
	}
	return a.advertised()
}

// makePeers makes what forwards requests to other servers; nil: no others share the store, or they cannot reach this one.
func (a *assembly) makePeers() (*peerproxy.Proxy, error) {
	own := a.peerAddress()
	if !a.settings.engine.Shared || own.Addr().IsLoopback() && !a.peering.own.IsValid() {
		return nil, nil
	}
	id, err := serverID()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: a.peering.authorities, ServerName: serviceName, MinVersion: tls.VersionTLS12}
	if config.RootCAs == nil {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(a.access.endpoint.Authorities)
	}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if a.frontProxy != nil {
			return a.frontProxy.Certificate(), nil
		}
		own := a.material.FrontProxyClient.TLS()
		return &own, nil
	}
	return peerproxy.New(peerproxy.Options{
		ID: id, Own: own, Store: a.store, TLS: config, Log: a.settings.Logger.With("part", "apiserver"),
		Shared: func(ctx context.Context) map[schema.GroupVersion]bool { return apiserver.SharedVersions(ctx, a.server) },
	}), nil
}

// followPeers runs what forwards requests to other servers.
func (a *assembly) followPeers(ctx context.Context) {
	if a.peers == nil {
		return
	}
	a.clients.Run(ctx, "proxy to the other servers", func(ctx context.Context) error {
		a.peers.Run(ctx)
		return nil
	})
}
