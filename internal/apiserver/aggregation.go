// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"crypto/tls"
	"net/http"

	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// Aggregation configures the connections to aggregated API servers. The zero value uses the certificate of
// Options.Material, and connects to endpoints.
type Aggregation struct {
	// Certificate is the front proxy's; nil: the material's.
	Certificate func() *tls.Certificate
	// ClusterIPs has services called at their cluster IP.
	ClusterIPs bool
	// ForwardRedirects hands a server's redirects on to the client.
	ForwardRedirects bool
}

// newAggregator makes what sends requests on to other servers.
func (s *Server) newAggregator() error {
	o := &s.opts.Aggregation
	certificate := o.Certificate
	if m := s.opts.Material; certificate == nil && m != nil {
		own := m.FrontProxyClient.TLS()
		certificate = func() *tls.Certificate { return &own }
	}
	s.aggregator = aggregate.New(aggregate.Options{
		Backend: func() aggregate.Backend { return s.registry.Backend() }, Ledger: s.opts.Ledger, Certificate: certificate,
		ClusterIPs: o.ClusterIPs, ForwardRedirects: o.ForwardRedirects, RequestTimeout: s.opts.FlowControl.RequestTimeout,
		Dial: s.opts.Egress.Cluster(), Log: s.opts.Log,
	})
	return s.metrics.Registry().Register(s.aggregator)
}

// Aggregator returns the registrations of group-versions that other servers serve.
func (s *Server) Aggregator() *aggregate.Aggregator { return s.aggregator }

// delegated forwards a request for a path of another server; false: this server serves the path.
func (s *Server) delegated(w http.ResponseWriter, r *http.Request, info *requestinfo.Info) bool {
	to := s.aggregator.Find(r.URL.Path)
	if to == nil {
		return false
	}
	flowcontrol.Began(r.Context()) // a server that is slow takes no seats of this one's
	lasting := info.Verb == "watch" || longRunning(info)
	to.Serve(w, r, lasting, s.lifetime.Context)
	return true
}
