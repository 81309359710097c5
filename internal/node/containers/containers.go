// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package containers runs nodes with real containers on this machine: through the container runtime, with the service proxy, the
// cluster DNS and routes to other nodes. [New] is what package node takes for it; [Join] runs a node of a cluster whose API server is
// elsewhere.
//
// Programs that need simulated nodes only do not import this package, which brings netlink, the packet filters and the runtime's
// protocol with it, and which needs Linux.
package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress/kernel"
	"github.com/mortise-dev/mortise/internal/agent/podaccess"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
	"github.com/mortise-dev/mortise/internal/agent/proxyconfig"
	"github.com/mortise-dev/mortise/internal/agent/server"
	"github.com/mortise-dev/mortise/internal/builtin/nodeparts"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/machine"
	"github.com/mortise-dev/mortise/internal/node"
)

// kubeletDir is kubelet's usual directory: plug-ins have its paths built in.
const kubeletDir = "/var/lib/kubelet"

// New returns what runs containers on this machine.
func New() node.Containers { return here{} }

// here is this machine. It implements [node.Containers].
type here struct{}

// Addresses implements [node.Containers].
func (here) Addresses() nodeaddress.Machine { return kernel.Linux{} }

// Plan implements [node.Containers].
func (here) Plan(ctx context.Context, o *node.Options) (node.Machine, string, error) {
	p, err := check(ctx, o)
	if err != nil {
		return nil, "", err
	}
	return known{p}.Plan(ctx, o)
}

// Plan is the checked configuration of a node with containers. It implements [node.Machine].
type Plan struct {
	node.Options        // Mode is no longer Auto
	text         string // describes what runs pods, with the reason if check chose it

	socket   string              // of the container runtime
	cniDir   string              // of the container runtime's network configurations
	kubelet  *kubelet            // nil: there is no file
	proxying *proxyconfig.Config // of Services; nil: there is no file
	metrics  *proxy.Metrics      // nil: the API server is elsewhere, and cannot show them
}

// check decides what runs pods, reads and checks the configuration, and changes the options by them. It starts nothing.
func check(ctx context.Context, o *node.Options) (*Plan, error) {
	p := &Plan{}
	var err error
	if p.kubelet, err = checkKubelet(o); err != nil {
		return nil, err
	}
	p.Options = *o
	if err := p.findRuntime(ctx); err != nil {
		return nil, err
	}
	o.Mode = p.Mode
	return p, p.checkNetwork()
}

// findRuntime decides between containers and simulated pods.
func (p *Plan) findRuntime(ctx context.Context) error {
	if p.Mode == node.None || p.Mode == node.Simulated {
		p.text = string(p.Mode)
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
				p.Mode, p.socket, p.text = node.CRI, s, "containerd"
				p.cniDir, err = machine.CNIConfDir(ctx, s)
				return err
			}
			p.Ledger.Unregister(ref)
			reason = fmt.Sprintf("no container runtime answers at %s", s)
		}
	}
	if p.Mode == node.CRI {
		return fmt.Errorf("node cri: %s; `mortise machine prepare` (as root) installs and starts one", reason)
	}
	p.Mode, p.text = node.Simulated, fmt.Sprintf("simulated (%s)", reason)
	return nil
}

// Claim implements [node.Machine].
func (p *Plan) Claim(ctx context.Context) (io.Closer, error) { return machine.Claim(ctx) }

// Metrics implements [node.Machine].
func (p *Plan) Metrics(registry prometheus.Registerer) (err error) {
	p.metrics, err = proxy.NewMetrics(registry)
	return err
}

// ForeignNetwork reports whether the pods' network is not Mortise's: its own ways are needed then, and none of ours.
func (p *Plan) ForeignNetwork() bool { return cni.Other(p.cniDir) != "" }

// OpenPodAccess implements [node.Machine].
func (p *Plan) OpenPodAccess(ctx context.Context, port int, log *slog.Logger) (*node.PodAccess, error) {
	filter := podaccess.Filter{Pods: p.PodCIDRs, Foreign: p.ForeignNetwork, Logger: log}
	a := &node.PodAccess{Addresses: podaccess.Addresses(p.PodCIDRs), Admit: filter.Only, Remove: podaccess.Remove}
	if err := podaccess.Open(a.Addresses); err != nil {
		return nil, fmt.Errorf("add the address at which pods reach the API server: %w", err)
	}
	var err error
	if a.Listeners, err = podaccess.Listen(ctx, a.Addresses, port, filter); err != nil {
		return nil, errors.Join(err, podaccess.Remove())
	}
	return a, nil
}

// Run implements [node.Machine].
func (p *Plan) Run(ctx context.Context, c *node.Connection, usage *node.Usage, parts *lifecycle.Group) error {
	var network network
	if !c.NetworkElsewhere {
		var err error
		if network, err = p.runNetwork(ctx, c, parts); err != nil {
			return err
		}
	}
	return p.runAgent(ctx, c, network, usage, parts)
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
func (p *Plan) runAgent(ctx context.Context, c *node.Connection, n network, usage *node.Usage, parts *lifecycle.Group) error {
	log := p.Logger.With("part", "node")
	reviews, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make client of the node's API: %w", err)
	}
	measured := agent.NewMetrics()
	parts.Run(ctx, "node's addresses", c.Addresses.Run)
	cloud := agent.CloudOptions{External: p.Settings.CloudProvider == options.ExternalCloud, Given: c.Given}
	if c.Outside != nil {
		cloud.Outside = c.Outside
		parts.Run(ctx, "machine's addresses", c.Outside.Run)
	}
	ledger, shown := p.Ledger, (*extension.Ledger)(nil)
	if c.Joined { // the server does not show the calls of this process
		if ledger == nil {
			ledger = extension.NewLedger(clock.RealClock{})
		}
		shown = ledger
	}
	settings := p.kubelet.settings(server.Options{
		ClientCAs: c.ClientCAs, Host: server.Host, Logger: log, Reviews: reviews, Metrics: measured.Gatherer(), Pages: p.pages(),
		Requests: server.NewRequestMetrics(), Probes: measured.Probes(), Extensions: shown,
	})
	parts.Run(ctx, "node", func(ctx context.Context) error {
		return agent.Run(ctx, agent.Options{
			NodeName: c.Name, Config: c.Config, RuntimeEndpoint: p.socket, Kubelet: p.kubelet.configuration(),
			Host: agent.HostOptions{
				RootDir: p.Settings.Root(p.DataDir), Links: p.links(), LocalStorage: p.localStorage(), CSIDrivers: p.Settings.CSIDrivers,
				PluginWait: p.Settings.PluginWait, Cloud: cloud,
			},
			CNI: p.cni(c, n),
			Server: agent.ServerOptions{
				Serve: usage.Of(server.Serve(settings), server.Host), Listen: p.kubelet.listenAt(listen(c)),
				TLS: p.kubelet.secured(c.Serving), Admit: p.kubelet.admits(c.Admit), ReadOnly: server.ServeReadOnly(settings),
			},
			ClusterDNS: n.clusterDNS, Addresses: c.Addresses, DecodePods: staticPods(), Volumes: nodeparts.VolumePlugins(),
			ImageCredentials: agent.ImageCredentialsOptions{
				Config: p.Settings.ImageCredentialProviderConfig, BinDir: p.Settings.ImageCredentialProviderBinDir,
			},
			Ledger: ledger, Metrics: measured, Logger: log,
		})
	})
	return nil
}

// cni returns the settings of the pods' network.
func (p *Plan) cni(c *node.Connection, n network) agent.CNIOptions {
	if c.NetworkElsewhere {
		return agent.CNIOptions{ConfDir: "-"}
	}
	return agent.CNIOptions{ConfDir: p.cniDir, PodCIDR: c.PodCIDR, MTU: n.podMTU, Masqueraded: n.masqueraded}
}

// listen returns the default address of the node's API: not an address that may change.
func listen(c *node.Connection) string {
	if c.Addresses.Fixed() {
		return net.JoinHostPort(c.Addresses.Texts()[0], "0")
	}
	return ":0"
}
