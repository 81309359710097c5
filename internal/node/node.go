// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package node runs nodes: in the process of a cluster, or as a node of a cluster whose API server is elsewhere.
//
// [Check] reads the node's configuration, decides what runs pods, and returns a [Plan]; it starts nothing. A [Connection] describes how
// the node and the API server reach each other. [Plan.Run] runs the nodes.
//
// This package has the simulated nodes, which run on any operating system. Nodes with real containers are an option, [Containers], which
// package containers implements: who does not want them does not depend on them.
package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/server"
	"github.com/mortise-dev/mortise/internal/agent/simulated"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/version"
)

// Mode is what runs pods.
type Mode string

// The modes of a node.
const (
	Auto      Mode = "auto"      // CRI as root with a container runtime, else simulated
	CRI       Mode = "cri"       // real containers; an error without a runtime
	Simulated Mode = "simulated" // simulated pods pass through their phases without containers
	None      Mode = "none"      // pods stay pending
)

// DefaultPodCIDR is the range of pods' addresses unless the settings give another.
const DefaultPodCIDR = "10.244.0.0/16"

// Options are the settings of a node.
type Options struct {
	DataDir string
	Mode    Mode
	Count   int // of simulated nodes
	// CRISocket is the runtime's socket; empty: containerd's usual place, then the one that `mortise machine prepare` made.
	CRISocket string

	PodCIDRs     []netip.Prefix // of all pods in the cluster: one range, or one of each IP family
	ServiceCIDRs []netip.Prefix // none: unknown to the node

	Settings  options.Node
	Network   options.Network
	Simulated options.Simulated

	// KubeletFlags sets the fields of the KubeletConfiguration for which the node was given kubelet's flags, which win over the files. Nil:
	// the node was started without kubelet's flags.
	KubeletFlags func(*configv1beta1.KubeletConfiguration)

	// Containers runs pods in containers; nil: pods are simulated.
	Containers Containers

	Ledger *extension.Ledger
	Logger *slog.Logger
}

// Containers runs pods in containers on this machine. Package containers has the only one.
type Containers interface {
	// Plan decides whether containers run pods here, by the options, and reads and checks the configuration of a node with containers.
	// It changes the options by that, their mode above all. The machine is nil if there are no containers. The text describes what runs
	// pods, with the reason if Plan chose it.
	Plan(ctx context.Context, o *Options) (m Machine, text string, err error)
	// Addresses returns the source of the machine's addresses.
	Addresses() nodeaddress.Machine
}

// Machine is a machine that runs pods in containers.
type Machine interface {
	// Claim claims the machine until the claim is closed or the process ends. Another node with containers on the machine is an error.
	Claim(ctx context.Context) (io.Closer, error)
	// Metrics registers the metrics of the service proxy, before Run.
	Metrics(registry prometheus.Registerer) error
	// OpenPodAccess lets pods of the machine reach a server that listens on a port of loopback.
	OpenPodAccess(ctx context.Context, port int, log *slog.Logger) (*PodAccess, error)
	// Run starts the node and its network: Services, names and routes.
	Run(ctx context.Context, c *Connection, usage *Usage, parts *lifecycle.Group) error
}

// PodAccess is what lets pods of a machine reach a server that listens on loopback.
type PodAccess struct {
	Addresses []netip.Addr
	Listeners []net.Listener
	Admit     func(net.Listener) net.Listener // accepts only connections of pods and of the machine
	Remove    func() error                    // removes the addresses from the machine
}

// Plan is the checked configuration of nodes, and what runs their pods.
type Plan struct {
	Options        // Mode is no longer Auto
	Text    string // describes what runs pods, with the reason if Check chose it

	machine Machine // nil: nodes are simulated, or there are none
	usage   Usage
	groups  []simulated.Group // none: simulated nodes are all alike
	phases  simulated.Phases
}

// Check decides what runs pods, and reads and checks the configuration. It starts nothing.
func Check(ctx context.Context, o Options) (*Plan, error) {
	p := &Plan{Options: o}
	if err := o.Settings.Check(); err != nil {
		return nil, err
	}
	if err := p.findMachine(ctx); err != nil {
		return nil, err
	}
	return p, p.checkSimulated()
}

// findMachine decides between containers and simulated pods.
func (p *Plan) findMachine(ctx context.Context) (err error) {
	if p.Containers != nil {
		p.machine, p.Text, err = p.Containers.Plan(ctx, &p.Options)
		return err
	}
	switch {
	case p.Mode == CRI:
		return errors.New("node cri: this program runs no containers; embed.Server.Containers enables them")
	case p.Settings.ConfigFile != "" || p.Settings.ConfigDir != "" || p.Options.Network.ProxyConfigFile != "":
		return errors.New("there is a configuration of a node with containers, but this program runs none; embed.Server.Containers enables them")
	case p.Mode == Auto:
		p.Mode, p.Text = Simulated, "simulated (this program runs no containers)"
	default:
		p.Text = string(p.Mode)
	}
	return nil
}

// Claim claims the machine for a node with real containers, until the claim is closed or the process ends. Another such node on the
// machine is an error.
func (p *Plan) Claim(ctx context.Context) (io.Closer, error) {
	if p.machine == nil {
		return io.NopCloser(nil), nil
	}
	return p.machine.Claim(ctx)
}

// Metrics registers the metrics of nodes with containers.
func (p *Plan) Metrics(registry prometheus.Registerer) error {
	if p.machine == nil {
		return nil
	}
	return p.machine.Metrics(registry)
}

// OpenPodAccess lets pods of this machine reach a server that listens on a port of loopback. It returns nil if the pods are simulated.
func (p *Plan) OpenPodAccess(ctx context.Context, port int, log *slog.Logger) (*PodAccess, error) {
	if p.machine == nil {
		return nil, nil
	}
	return p.machine.OpenPodAccess(ctx, port, log)
}

// Usage measures the plan's nodes while they run.
func (p *Plan) Usage() *Usage { return &p.usage }

// Connection says how a node and the API server reach each other.
type Connection struct {
	Name      string
	Addresses *nodeaddress.Addresses // for other hosts: the first, and with two IP families the other's
	Given     bool                   // Addresses are configured: a cloud has to confirm them
	Outside   *nodeaddress.Addresses // of the machine in its network, if Addresses are out of reach there; nil: they are not
	ClientCAs *x509.CertPool         // of clients of the node's API
	Serving   *tls.Config            // of the node's API; nil: simulated nodes serve none

	Config  *rest.Config // as the node
	Network *rest.Config // for the watches of the proxy and the DNS
	DNS     *rest.Config // creates the Service of the DNS, if there is none

	Admit   func(net.Listener) net.Listener // wraps the listener of the node's API, unless its configuration sets the address
	PodCIDR string                          // the node's own; empty: the controllers allocate it
	Joined  bool                            // the API server is elsewhere

	// NetworkElsewhere means that other programs run the network of pods and Services, and the cluster's DNS, as with kubelet.
	NetworkElsewhere bool
}

// Serve configures TLS for the node's API. Sign creates its certificate, at once and whenever the node's addresses change.
func (c *Connection) Serve(sign func(hosts ...string) (tls.Certificate, error), log *slog.Logger) error {
	var current atomic.Pointer[tls.Certificate]
	renew := func() error {
		certificate, err := sign(c.Addresses.Texts()...)
		if err == nil {
			current.Store(&certificate)
		}
		return err
	}
	if err := renew(); err != nil {
		return err
	}
	c.ServeBy(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil })
	c.Addresses.Tell(func() {
		if err := renew(); err != nil {
			log.Error("Could not issue the node's serving certificate for its new addresses, keeping the previous one", "error", err)
		}
	})
	return nil
}

// ServeBy configures TLS for the node's API, with a certificate that certificate returns.
func (c *Connection) ServeBy(certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)) {
	c.Serving = &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, ClientCAs: c.ClientCAs, NextProtos: []string{"http/1.1"},
		GetCertificate: certificate,
	}
}

// Run starts what runs pods, and serves its HTTP API on a port of its own.
func (p *Plan) Run(ctx context.Context, c *Connection, parts *lifecycle.Group) error {
	if p.Mode == None {
		return nil
	}
	if p.machine != nil {
		return p.machine.Run(ctx, c, &p.usage, parts)
	}
	log := p.Logger.With("part", "node")
	alone, l, err := "", net.Listener(nil), error(nil)
	switch {
	case c.Serving == nil:
	case c.Joined:
		var lc net.ListenConfig
		alone = c.Name
		l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(c.Addresses.Texts()[0], "0"))
	default:
		l, err = simulated.Listen(ctx)
	}
	if err != nil {
		return fmt.Errorf("listen for the node's API: %w", err)
	}
	if l != nil {
		l = tls.NewListener(l, c.Serving)
	}
	reviews, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make client of the node's API: %w", err)
	}
	api := server.ServeNodes(server.Options{ClientCAs: c.ClientCAs, Kubelet: kubeletconfig.Effective(nil), Reviews: reviews, Logger: log})
	parts.Run(ctx, "simulated nodes", func(ctx context.Context) error {
		return simulated.Run(ctx, simulated.Options{
			Config: c.Config, Alone: alone, Groups: p.groups, Nodes: p.Count, Phases: p.phases, PodCIDR: p.simulatedRange(),
			Version: version.Get().GitVersion, Listener: l, TLS: c.Serving, Serve: p.usage.ofMany(api), Logger: log,
			ExternalCloud: p.Settings.CloudProvider == options.ExternalCloud,
		})
	})
	return nil
}

// HostName returns the host's name in the kubelet's form: lower case, without surrounding white space.
func HostName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read host name: %w", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
