// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"io"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/modes"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/http2server"
	"github.com/mortise-dev/mortise/internal/apiserver/metricsapi"
	"github.com/mortise-dev/mortise/internal/apiserver/peerproxy"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/console"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/scalinglog"
	"github.com/mortise-dev/mortise/internal/datadir"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// assembly holds the results of the steps so far. Only the table of steps reads and writes it.
type assembly struct {
	process  *lifecycle.Process
	settings *settings
	ledger   *extension.Ledger // makes every call out to an extension
	checked
	opened
	running
}

func newAssembly(s *settings, p *lifecycle.Process) *assembly {
	return &assembly{process: p, settings: s, ledger: extension.NewLedger(clock.RealClock{})}
}

// checked is the content of the settings' files, read before anything is written.
type checked struct {
	admission        admit.Chain
	initializing     initializing
	externalMetrics  []*resource.Descriptor // the kind of routes to external-metrics servers; none: these are disabled
	consoleKinds     []*resource.Descriptor // the kind of extensions of the console; none: it is not served
	egress           *egress.Selector       // selects the proxies of outgoing connections; nil: all are direct
	authentication   *authentication
	modes            *modes.Settings // of authorization
	encryptionConfig *encryption.Config
	frontProxy       *serving.FilePair // nil: the cluster's own
	servingFiles     *servingFiles     // nil: the cluster's own
	peering          peering
	nodeCAs          []byte // PEM, of nodes' serving certificates beside the cluster's own; nil: these are not verified
	scheduling       scheduling
	node             *node.Plan
}

// opened is what only this process may use.
type opened struct {
	claim      io.Closer // of the machine
	listener   net.Listener
	forPods    podAccess    // beside a listener on loopback
	dir        *datadir.Dir // nil: there is no data directory
	material   *serving.Material
	access     access
	encryption encrypting
	store      *store.Store
}

// running are the running parts.
type running struct {
	auditor       *audit.Auditor   // nil: there is no audit
	auditing      *lifecycle.Group // the auditor, which outlasts the API server
	authorization authorization
	observation   observation
	metrics       *metricsapi.Server // nil: metrics.k8s.io is not served
	peers         *peerproxy.Proxy   // nil: no other servers share the store
	versions      *storageVersions   // nil: storage versions are not reported
	server        *apiserver.Server
	console       *console.Console // nil: it is not served
	bootstrapped  chan struct{}    // closed when the bootstrap objects exist
	background    *lifecycle.Group // the API server, and the watchers of its files
	clients       *lifecycle.Group // controllers, scheduler, node: the clients of the API server
	spread        apiserver.Spread // sends clients away to other servers
	http2         *http2server.Server
	settled       <-chan struct{}
	connection    *node.Connection
}

// self returns the components' clients of the API server.
func (a *assembly) self() components { return components{server: a.server, modes: a.modes} }

// observation is the metrics and records of parts outside the API server.
type observation struct {
	registry    *prometheus.Registry
	controllers *controllers.Metrics
	scheduler   *metrics.Metrics
	explain     apiserver.Explain
	decisions   *decisionlog.Log // of the scheduler; nil: not recorded
	scalings    *scalinglog.Log  // of HorizontalPodAutoscalers; nil: not recorded
	usage       controllers.PodUsage
	retries     *controllers.RetryCounter
}

// observe creates the metrics of the controllers, the node and the scheduler.
func observe(s *settings, plan *node.Plan) (o observation, err error) {
	o.registry, o.retries = prometheus.NewRegistry(), &controllers.RetryCounter{}
	if o.controllers, err = controllers.NewMetrics(o.registry); err != nil {
		return o, err
	}
	if err = plan.Metrics(o.registry); err != nil {
		return o, err
	}
	if o.scheduler, err = metrics.New(o.registry); err != nil {
		return o, err
	}
	s.explain(&o)
	return o, nil
}
