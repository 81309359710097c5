// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"crypto/tls"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/peerproxy"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// Aggregation configures the connections to aggregated API servers. The zero value uses the certificate of
// Options.Material, and connects to endpoints.
type Aggregation struct {
	// Certificate is the front proxy's certificate; nil: the material's.
	Certificate func() *tls.Certificate
	// ClusterIPs makes the server call services at their cluster IP.
	ClusterIPs bool
	// ForwardRedirects forwards a server's redirects to the client.
	ForwardRedirects bool
	// ExternalMetricsRoutes follows routes to several external-metrics servers. Their kind must be among the kinds.
	ExternalMetricsRoutes bool
	// Peers forwards requests for resources that only other servers of the cluster serve; nil: there are no others.
	Peers *peerproxy.Proxy
}

// newAggregator makes the aggregator, which forwards requests to other servers.
func (s *Server) newAggregator() error {
	o := &s.opts.Aggregation
	certificate := o.Certificate
	if m := s.opts.Material; certificate == nil && m != nil {
		own := m.FrontProxyClient.TLS()
		certificate = func() *tls.Certificate { return &own }
	}
	to := aggregate.Options{
		Backend: func() aggregate.Backend { return s.registry.Backend() }, Ledger: s.opts.Ledger, Certificate: certificate,
		ClusterIPs: o.ClusterIPs, ForwardRedirects: o.ForwardRedirects, RequestTimeout: s.opts.FlowControl.RequestTimeout,
		Dial: s.opts.Egress.Cluster(), Log: s.opts.Log,
	}
	s.others = newOthers(to, o.ExternalMetricsRoutes)
	return s.metrics.Registry().Register(s.others.aggregator)
}

// Aggregator returns the registrations of group-versions that other servers serve.
func (s *Server) Aggregator() *aggregate.Aggregator { return s.others.aggregator }

// delegated forwards a request for a path of another server; false: this server serves the path.
func (s *Server) delegated(w http.ResponseWriter, r *http.Request, info *requestinfo.Info) bool {
	if s.others.discovers(r.URL.Path) {
		flowcontrol.Began(r.Context())
		s.others.routes.ServeHTTP(w, r)
		return true
	}
	to, err := s.others.find(r.URL.Path)
	if err != nil {
		status.Write(w, r, apierrors.NewServiceUnavailable(err.Error()))
		return true
	}
	if to == nil {
		return false
	}
	flowcontrol.Began(r.Context()) // a slow server must not use this server's seats
	lasting := info.Verb == "watch" || longRunning(info)
	to.Serve(w, r, lasting, s.lifetime.Context)
	return true
}
