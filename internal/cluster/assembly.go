// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/modes"
	"github.com/mortise-dev/mortise/internal/apiserver/encryption"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/datadir"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/store"
)

// assembly holds what the steps have made so far. Only the table of steps reads and writes it.
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

// checked is what the settings and their files say: it was read before anything was written.
type checked struct {
	admission        admit.Chain
	initializing     initializing
	egress           *egress.Selector // by which way connections leave; nil: the ordinary one
	authentication   *authentication
	modes            *modes.Settings // of authorization
	encryptionConfig *encryption.Config
	frontProxy       *serving.FilePair // nil: the cluster's own
	servingFiles     *servingFiles     // nil: the cluster's own
	nodeCAs          []byte            // PEM, of nodes' serving certificates beside the cluster's own; nil: these are not verified
	scheduling       scheduling
	node             *node.Plan
}

// opened is what belongs to this process alone.
type opened struct {
	listener   net.Listener
	forPods    podAccess    // beside a listener on loopback
	dir        *datadir.Dir // nil: there is none
	material   *serving.Material
	access     access
	encryption encrypting
	store      *store.Store
}

// running is what works.
type running struct {
	auditor       *audit.Auditor   // nil: nothing is audited
	auditing      *lifecycle.Group // the auditor, which outlasts the API server
	authorization authorization
	observation   observation
	server        *apiserver.Server
	bootstrapped  chan struct{}    // closed when the objects that every cluster has are there
	background    *lifecycle.Group // the API server, and what follows files for it
	clients       *lifecycle.Group // controllers, scheduler, node: what talks to the API server
	settled       <-chan struct{}
	connection    *node.Connection
	network       node.Network
}

// self makes clients of the API server for the components of this process.
func (a *assembly) self() components { return components{server: a.server, modes: a.modes} }

// observation is what is measured and kept of the parts that are not the API server's own.
type observation struct {
	registry    *prometheus.Registry
	controllers *controllers.Metrics
	proxy       *proxy.Metrics
	scheduler   *metrics.Metrics
	explain     apiserver.Explain
	decisions   *decisionlog.Log // of the scheduler; nil: they are not kept
}

// observe makes the metrics of the controllers, the service proxy and the scheduler.
func observe(s *settings) (o observation, err error) {
	o.registry = prometheus.NewRegistry()
	if o.controllers, err = controllers.NewMetrics(o.registry); err != nil {
		return o, err
	}
	if o.proxy, err = proxy.NewMetrics(o.registry); err != nil {
		return o, err
	}
	if o.scheduler, err = metrics.New(o.registry); err != nil {
		return o, err
	}
	o.explain, o.decisions = s.explain()
	return o, nil
}
