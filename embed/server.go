// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package embed is Mortise as a library: a [Server] is a whole cluster (store, API server, controllers, scheduler, node)
// in the process that starts it.
//
//	s := &embed.Server{}             // in memory, on a free port, one simulated node
//	if err := s.Start(ctx); err != nil { … }
//	defer s.Stop()
//	clientset, err := kubernetes.NewForConfig(s.Config())
//
// The zero value works. Start reads the fields; do not change them afterwards. Extensions in Go (admission plug-ins,
// controllers, scheduler plug-ins, kinds) go into [Extensions]; a ten-line main with its own Server is a Mortise with these
// extensions. For Go tests see package embedtest.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a program is announced in a
// release before.
package embed

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/cluster"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/store"
)

// NodeMode selects how pods run.
type NodeMode string

// The modes of [Server.Node].
const (
	NodeAuto      NodeMode = "auto"      // CRI as root with Server.Containers and a container runtime, else simulated
	NodeCRI       NodeMode = "cri"       // real containers; an error without a runtime or Server.Containers
	NodeSimulated NodeMode = "simulated" // simulated pods pass through their phases without containers
	NodeNone      NodeMode = "none"      // pods stay pending
)

// Containers runs pods in containers on the machine. Function Containers of package embed/node returns it.
type Containers = node.Containers

// Server is a cluster. Start it once, Stop it once; the other methods work between the two.
type Server struct {
	// DataDir is the directory of all state. Empty: the store is in memory, and the process loses its certificates when it ends.
	DataDir string
	// Listen is HOST:PORT; empty: a free port of 127.0.0.1.
	Listen string
	// KubeconfigFile, when set, is written (0600) once the cluster is ready, and only then.
	KubeconfigFile string
	// Store is local (on disk, durable; needs DataDir), etcd (see APIServer.Etcd) or memory; empty: local with a DataDir, else memory.
	Store string
	// Engine, when set, is the store, in place of the one that Store names: an engine of your own, which package store/storetest has passed.
	// Stop closes it. The cluster takes it for one in memory: it finishes requests for 5 s only, and loses its certificates without a
	// DataDir.
	Engine store.Engine
	// Node selects how pods run; empty: simulated.
	Node NodeMode
	// Nodes is the number of simulated nodes; 0: one.
	Nodes int
	// CRISocket is the runtime's socket; empty: containerd's usual place, then the one that `mortise machine prepare` made.
	CRISocket string
	// Containers runs pods in containers: node.Containers() of package embed/node. Nil: this program runs no containers, and does not
	// depend on what they need.
	Containers Containers
	// PodCIDR and ServiceCIDR are the address ranges; empty: 10.244.0.0/16 and 10.96.0.0/16. ServiceCIDR may be two of
	// different IP families, the preferred first, with a comma between them.
	PodCIDR, ServiceCIDR string
	// Controllers selects by name: "*" all, "none", "a" this one, "-b" not that one; nil: all.
	// "none" leaves a bare API server, without scheduler and node.
	Controllers []string
	// FeatureGates are upstream's feature gates that differ from their defaults, by name; nil: all at their defaults. There are two.
	// CBORServingAndStorage lets clients speak CBOR; objects are stored as ever. StorageVersionAPI has the server report in which versions
	// it stores the built-in kinds (KEP-2339); it needs internal.apiserver.k8s.io/v1alpha1 in RuntimeConfig.
	FeatureGates map[string]bool
	// RuntimeConfig enables or disables group-versions and resources, as kube-apiserver's --runtime-config: "true" or "false" by api/all,
	// api/ga, api/beta, api/alpha, GROUP/VERSION or GROUP/VERSION/RESOURCE; nil: the stable ones.
	RuntimeConfig map[string]string
	// APIServer are kube-apiserver's settings, such as authentication, authorization and audit.
	APIServer options.APIServer
	// Extensions are extensions in Go.
	Extensions Extensions
	// Logger receives the server's logs; nil discards them.
	Logger *slog.Logger
	// Started is when the process began, for the time that /metrics reports; zero: when Start was called.
	Started time.Time
	// Progress is called with the name of each step of the start as it begins, one at a time, before Start returns; nil: nothing is.
	Progress func(step string)

	cluster *cluster.Cluster // nil: not started
}

// Start starts the cluster and returns when it is ready: the API responds, over TLS, and the configured files are written.
// Controllers, scheduler and node are running but may still be filling their caches. Ending ctx before that abandons the
// start; afterwards it has no effect. When Start returns an error, no part of the cluster is left running.
func (s *Server) Start(ctx context.Context) error {
	c, err := cluster.Start(ctx, cluster.Settings{
		DataDir: s.DataDir, Listen: s.Listen, KubeconfigFile: s.KubeconfigFile, Store: s.Store, Engine: s.Engine,
		Node: node.Mode(s.Node), Nodes: s.Nodes, CRISocket: s.CRISocket, Containers: s.Containers,
		PodCIDR: s.PodCIDR, ServiceCIDR: s.ServiceCIDR,
		Controllers: s.Controllers, FeatureGates: s.FeatureGates, RuntimeConfig: s.RuntimeConfig,
		APIServer: s.APIServer, Extensions: s.Extensions.settings(), Logger: s.Logger,
		Start: cluster.Startup{Began: s.Started, Progress: s.Progress},
	})
	if err != nil {
		return err
	}
	s.cluster = c
	return nil
}

// Stop ends the cluster cleanly: it accepts no new requests, finishes those in progress, and writes all state to disk. Pods of a real
// node keep running. Stop returns when everything has ended; more calls return the same.
func (s *Server) Stop() error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.Stop()
}

// Wait blocks until the cluster ends: nil after Stop, the reason if a part of it failed.
func (s *Server) Wait() error { return s.cluster.Wait() }

// Settled is closed when the controllers have filled their caches and have no work; immediately if none run.
func (s *Server) Settled() <-chan struct{} { return s.cluster.Settled() }

// Config returns an administrator's client configuration: over TLS, or in-process for a fork without a port.
func (s *Server) Config() *rest.Config { return s.cluster.Config() }

// As returns a client configuration of a user, with the user's rights by the cluster's authorization. Its requests reach the API server
// in this process, without a connection or credentials: it cannot be used for protocols other than HTTP requests, such as exec.
func (s *Server) As(name string, groups ...string) *rest.Config {
	return s.cluster.As(&user.DefaultInfo{Name: name, Groups: append(slices.Clone(groups), user.AllAuthenticated)})
}

// Client returns a client of Config. It panics if the cluster is not started.
func (s *Server) Client() kubernetes.Interface { return kubernetes.NewForConfigOrDie(s.Config()) }

// Kubeconfig returns the administrator's kubeconfig file, as YAML.
func (s *Server) Kubeconfig() []byte { return s.cluster.Kubeconfig() }

// URL returns https://HOST:PORT.
func (s *Server) URL() string { return s.cluster.URL() }

// Ready describes a running cluster, or a running node of package node.
type Ready struct {
	URL        string // of the API server, https://HOST:PORT; empty: it has no port
	Kubeconfig string // the path of the administrator's kubeconfig, or of the node's; empty: none was written
	Pods       string // what runs the pods, with the node's name or with the reason if the server chose that
}

// Ready describes the running cluster.
func (s *Server) Ready() Ready {
	return Ready{URL: s.cluster.URL(), Kubeconfig: s.KubeconfigFile, Pods: s.cluster.Node()}
}
