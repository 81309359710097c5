// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package node runs nodes: in the process of a cluster, or as a node of a cluster whose API server is elsewhere.
//
// [Check] reads the node's configuration, decides what runs pods, and returns a [Plan]; it starts nothing. A [Connection] describes how the
// node and the API server reach each other. [Plan.RunNetwork] runs Services, names and routes on a real node, and [Plan.Run] runs the node
// itself. [Join] does all of this for a node that joins a cluster elsewhere.
package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/proxyconfig"
	"github.com/mortise-dev/mortise/internal/agent/server"
	"github.com/mortise-dev/mortise/internal/agent/simulated"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/machine"
	"github.com/mortise-dev/mortise/internal/version"
)

// kubeletDir is kubelet's usual directory: plug-ins have its paths built in.
const kubeletDir = "/var/lib/kubelet"

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

	Ledger *extension.Ledger
	Logger *slog.Logger
}

// Plan is the checked configuration of a node, and what runs its pods.
type Plan struct {
	Options        // Mode is no longer Auto
	Text    string // describes what runs pods, with the reason if Check chose it

	socket   string              // of the container runtime
	cniDir   string              // of the container runtime's network configurations
	kubelet  *kubelet            // nil: there is no file
	proxying *proxyconfig.Config // of Services; nil: there is no file
	usage    Usage
	groups   []simulated.Group // none: simulated nodes are all alike
	phases   simulated.Phases
}

// Check decides what runs pods, and reads and checks the configuration. It starts nothing.
func Check(ctx context.Context, o Options) (*Plan, error) {
	p := &Plan{Options: o}
	var err error
	if p.kubelet, err = checkKubelet(&p.Options); err != nil {
		return nil, err
	}
	if err := p.findRuntime(ctx); err != nil {
		return nil, err
	}
	if err := p.checkSimulated(); err != nil {
		return nil, err
	}
	return p, p.checkNetwork()
}

// findRuntime decides between containers and simulated pods.
func (p *Plan) findRuntime(ctx context.Context) error {
	if p.Mode == None || p.Mode == Simulated {
		p.Text = string(p.Mode)
		return nil
	}
	sockets := []string{p.CRISocket}
	if p.CRISocket == "" {
		sockets = []string{machine.HostSocket}
		if p.DataDir != "" {
			own, err := machine.Socket(p.DataDir)
			if err != nil {
				return err
			}
			sockets = append(sockets, own)
		}
	}
	reason := ""
	switch {
	case os.Geteuid() != 0:
		reason = "not root"
	case p.DataDir == "":
		reason = "no data directory"
	default:
		for _, s := range sockets {
			ref := extension.Ref{Point: extension.ContainerRuntime, Name: s}
			p.Ledger.Register(ref, "--cri-socket")
			err := p.Ledger.Call(ctx, ref, extension.Policy{}, func(ctx context.Context) error { return machine.Answers(ctx, s) })
			if err == nil {
				p.Mode, p.socket, p.Text = CRI, s, "containerd"
				p.cniDir, err = machine.CNIConfDir(ctx, s)
				return err
			}
			p.Ledger.Unregister(ref)
			reason = fmt.Sprintf("no container runtime answers at %s", s)
		}
	}
	if p.Mode == CRI {
		return fmt.Errorf("node cri: %s; `mortise machine prepare` (as root) installs and starts one", reason)
	}
	p.Mode, p.Text = Simulated, fmt.Sprintf("simulated (%s)", reason)
	return nil
}

// Usage measures the plan's nodes while they run.
func (p *Plan) Usage() *Usage { return &p.usage }

// Claim claims the machine for a node with real containers, until the claim is closed or the process ends. Another such node on the machine
// is an error.
func (p *Plan) Claim(ctx context.Context) (io.Closer, error) {
	if p.Mode != CRI {
		return io.NopCloser(nil), nil
	}
	return machine.Claim(ctx)
}

// ForeignNetwork reports whether the pods' network is not Mortise's: its own ways are needed then, and none of ours.
func (p *Plan) ForeignNetwork() bool { return cni.Other(p.cniDir) != "" }

// Connection says how a node and the API server reach each other.
type Connection struct {
	Name      string
	Addresses *nodeaddress.Addresses // for other hosts: the first, and with two IP families the other's
	ClientCAs *x509.CertPool         // of clients of the node's API
	Serving   *tls.Config            // of the node's API

	Config  *rest.Config // as the node
	Network *rest.Config // for the watches of the proxy and the DNS
	DNS     *rest.Config // creates the Service of the DNS, if there is none

	Admit   func(net.Listener) net.Listener // wraps the listener of the node's API, unless its configuration sets the address
	PodCIDR string                          // the node's own; empty: the controllers allocate it
	Joined  bool                            // the API server is elsewhere
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

// listen returns the default address of the node's API: not an address that may change.
func (c *Connection) listen() string {
	if c.Addresses.Fixed() {
		return net.JoinHostPort(c.Addresses.Texts()[0], "0")
	}
	return ":0"
}

// Run starts what runs pods, and serves its HTTP API on a port of its own.
func (p *Plan) Run(ctx context.Context, c *Connection, n Network, parts *lifecycle.Group) error {
	log := p.Logger.With("part", "node")
	switch p.Mode {
	case None:
		return nil
	case CRI:
		return p.runAgent(ctx, c, n, parts, log)
	}
	alone, l, err := "", net.Listener(nil), error(nil)
	if c.Joined {
		var lc net.ListenConfig
		alone = c.Name
		l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(c.Addresses.Texts()[0], "0"))
	} else {
		l, err = simulated.Listen(ctx)
	}
	if err != nil {
		return fmt.Errorf("listen for the node's API: %w", err)
	}
	reviews, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make client of the node's API: %w", err)
	}
	api := server.ServeNodes(server.Options{ClientCAs: c.ClientCAs, Kubelet: agent.Effective(nil), Reviews: reviews, Logger: log})
	parts.Run(ctx, "simulated nodes", func(ctx context.Context) error {
		return simulated.Run(ctx, simulated.Options{
			Config: c.Config, Alone: alone, Groups: p.groups, Nodes: p.Count, Phases: p.phases, PodCIDR: p.simulatedRange(),
			Version: version.Get().GitVersion, Listener: tls.NewListener(l, c.Serving), TLS: c.Serving, Serve: p.usage.ofMany(api), Logger: log,
		})
	})
	return nil
}

// links returns the directory in which the node makes links to its own directories; empty: it makes none.
func (p *Plan) links() string {
	if p.Settings.NoKubeletLinks {
		return ""
	}
	return kubeletDir
}

// localStorage returns the directory of the node's local volumes; empty: it has none.
func (p *Plan) localStorage() string {
	if p.Settings.NoLocalStorage || p.DataDir == "" {
		return ""
	}
	return filepath.Join(p.DataDir, "local-storage")
}

// runAgent runs pods in containers.
func (p *Plan) runAgent(ctx context.Context, c *Connection, n Network, parts *lifecycle.Group, log *slog.Logger) error {
	reviews, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make client of the node's API: %w", err)
	}
	measured := agent.NewMetrics()
	parts.Run(ctx, "node's addresses", c.Addresses.Run)
	api := server.Serve(p.kubelet.settings(server.Options{
		ClientCAs: c.ClientCAs, Host: server.Host, Logger: log, Reviews: reviews, Metrics: measured.Gatherer(), Pages: p.pages(),
		Requests: server.NewRequestMetrics(), Probes: measured.Probes(),
	}))
	parts.Run(ctx, "node", func(ctx context.Context) error {
		return agent.Run(ctx, agent.Options{
			NodeName: c.Name, Config: c.Config, RuntimeEndpoint: p.socket, Kubelet: p.kubelet.configuration(),
			Host: agent.HostOptions{
				RootDir: p.Settings.Root(p.DataDir), Links: p.links(), LocalStorage: p.localStorage(), CSIDrivers: p.Settings.CSIDrivers,
				PluginWait: p.Settings.PluginWait,
			},
			CNI: agent.CNIOptions{ConfDir: p.cniDir, PodCIDR: c.PodCIDR, MTU: n.podMTU, Masqueraded: n.masqueraded},
			Server: agent.ServerOptions{
				Serve: p.usage.of(api), Listen: p.kubelet.listenAt(c.listen()), TLS: p.kubelet.secured(c.Serving), Admit: p.kubelet.admits(c.Admit),
			},
			ClusterDNS: n.clusterDNS, Addresses: c.Addresses, DecodePods: staticPods(), Volumes: builtin.VolumePlugins(),
			ImageCredentials: agent.ImageCredentialsOptions{
				Config: p.Settings.ImageCredentialProviderConfig, BinDir: p.Settings.ImageCredentialProviderBinDir,
			},
			Ledger: p.Ledger, Metrics: measured, Logger: log,
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
