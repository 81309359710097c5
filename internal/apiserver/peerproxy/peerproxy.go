// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package peerproxy forwards requests for built-in resources that this server does not serve to another server of the cluster that does:
// during an upgrade, or while servers differ in --runtime-config. It is kube-apiserver's mixed version proxy (KEP-4020), with its keys in
// the store and its headers, so that either kind of server can forward to the other.
//
// Each server writes its address under [Prefix], by its identity. A [Proxy] follows these keys and the identity Leases. It asks each other
// server once for what it serves, and again when that has started anew. [Proxy.Servers] is what it knows: immutable, for the routing of
// requests and for discovery. Definitions and APIServices are not asked for: all servers read them from the store.
//
// A Proxy is safe for concurrent use. Run owns a goroutine for each watch and for each other server.
package peerproxy

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/store"
)

// Header marks a forwarded request, which is not forwarded again.
const Header = "X-Kubernetes-Peer-Proxied"

// Options of [New].
type Options struct {
	ID    string         // this server's identity: the name of its Lease in kube-system
	Own   netip.AddrPort // where the others reach it
	Store *store.Store
	// TLS is of connections to others: the front proxy's certificate, the authorities of servers and their common name.
	TLS *tls.Config
	// Shared returns the group-versions that all servers know from the store, those of definitions and of aggregated API servers, once this
	// server knows all that were there when it was called. They are never forwarded. Nil: there are none.
	Shared func(ctx context.Context) map[schema.GroupVersion]bool
	Log    *slog.Logger
}

// Proxy knows the other servers, and forwards requests to them.
type Proxy struct {
	o         Options
	transport *http.Transport
	upgrades  *tls.Config // of connections that are upgraded
	metrics   metrics

	servers atomic.Pointer[Servers]
	changed func() // called after each change of servers, by tests; nil: there is none

	mu    sync.Mutex
	known map[string]*peer
}

// Servers are the other servers that are known: one immutable state, in the order of their identities.
type Servers struct {
	Own string // this server's identity
	All []Server
}

// Server is another server, and what it serves.
type Server struct {
	ID      string
	Address netip.AddrPort
	Groups  []apidiscoveryv2.APIGroupDiscovery // without the core group, which discovery does not merge

	resources map[schema.GroupVersionResource]bool
}

// New returns a proxy that knows no other server until Run.
func New(o Options) *Proxy {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Shared == nil {
		o.Shared = func(context.Context) map[schema.GroupVersion]bool { return nil }
	}
	p := &Proxy{o: o, known: map[string]*peer{}, metrics: newMetrics()}
	p.transport = &http.Transport{
		TLSClientConfig: o.TLS, ForceAttemptHTTP2: true, DisableCompression: true, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: dialTime, DialContext: dial, MaxIdleConnsPerHost: 25,
	}
	if p.upgrades = o.TLS.Clone(); p.upgrades != nil {
		p.upgrades.NextProtos = []string{"http/1.1"}
	}
	p.servers.Store(&Servers{Own: o.ID})
	return p
}

// Servers returns what is known now. It is the same pointer as long as nothing changes.
func (p *Proxy) Servers() *Servers { return p.servers.Load() }

// Describe and Collect implement [prometheus.Collector].
func (p *Proxy) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(p, to) }

// Collect implements [prometheus.Collector].
func (p *Proxy) Collect(to chan<- prometheus.Metric) { p.metrics.collect(to) }

// find returns the servers that serve a resource.
func (p *Proxy) find(r schema.GroupVersionResource) (all []Server) {
	for _, s := range p.Servers().All {
		if s.resources[r] {
			all = append(all, s)
		}
	}
	return all
}

// set replaces what is known of one server; nil: it is gone. The caller holds mu.
func (p *Proxy) set(id string, s *Server) {
	all := slices.DeleteFunc(slices.Clone(p.Servers().All), func(old Server) bool { return old.ID == id })
	if s != nil {
		all = append(all, *s)
		slices.SortFunc(all, func(a, b Server) int { return strings.Compare(a.ID, b.ID) })
	}
	p.servers.Store(&Servers{p.o.ID, all})
	if p.changed != nil {
		p.changed()
	}
}

// metrics are upstream's.
type metrics struct {
	rerouted, failed, unread *prometheus.CounterVec
}

func newMetrics() metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_" + name, Help: "[ALPHA] " + help}, labels)
	}
	return metrics{
		rerouted: vec("rerouted_request_total", "Total number of requests that were proxied to a peer kube-apiserver because the local "+
			"apiserver was not capable of serving it, broken down by 'group', 'version', and 'resource' indicating the GVR of the request. If "+
			`all three are empty (""), the request is a discovery request.`, "code", "group", "version", "resource"),
		failed: vec("peer_proxy_errors_total", "Total number of errors encountered while proxying requests to a peer kube apiserver",
			"type", "group", "version", "resource"),
		unread: vec("peer_discovery_sync_errors_total",
			"Total number of errors encountered while syncing discovery information from a peer kube-apiserver", "type"),
	}
}

func (m *metrics) collect(to chan<- prometheus.Metric) {
	m.rerouted.Collect(to)
	m.failed.Collect(to)
	m.unread.Collect(to)
}

// wait waits, and reports whether it did: ctx may end before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
