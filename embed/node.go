// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent"
	"github.com/mortise-dev/mortise/internal/agent/server"
	"github.com/mortise-dev/mortise/internal/agent/simulated"
	"github.com/mortise-dev/mortise/internal/agent/uplink"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/machine"
	"github.com/mortise-dev/mortise/internal/version"
)

// findNode decides what runs pods, and says why where it was left to us. Nothing is started yet.
func findNode(ctx context.Context, p *parts, o *settled) error {
	if err := checkKubelet(ctx, o); err != nil {
		return err
	}
	switch o.node {
	case NodeNone, NodeSimulated:
		p.nodeText = string(o.node)
		return nil
	}
	sockets := []string{o.criSocket}
	if o.criSocket == "" {
		sockets = []string{machine.HostSocket}
		if o.dataDir != "" {
			own, err := machine.Socket(o.dataDir)
			if err != nil {
				return err
			}
			sockets = append(sockets, own)
		}
	}
	why := ""
	if os.Geteuid() != 0 {
		why = "not root"
	} else if o.dataDir == "" {
		why = "no data directory"
	} else {
		for _, s := range sockets {
			ref := extension.Ref{Point: extension.ContainerRuntime, Name: s}
			p.ledger.Register(ref, "--cri-socket")
			err := p.ledger.Call(ctx, ref, extension.Policy{}, func(ctx context.Context) error { return machine.Answers(ctx, s) })
			if err == nil {
				o.node, p.criSocket, p.nodeText = NodeCRI, s, "containerd"
				return nil
			}
			p.ledger.Unregister(ref)
			why = fmt.Sprintf("no container runtime answers at %s", s)
		}
	}
	if o.node == NodeCRI {
		return fmt.Errorf("node cri: %s; `mortise machine prepare` (as root) arranges for one", why)
	}
	o.node, p.nodeText = NodeSimulated, fmt.Sprintf("simulated (%s)", why)
	return nil
}

// place is where a node runs, and how it reaches the API: in the server's own process, or from elsewhere.
type place struct {
	name, address string
	addresses     *uplink.Addresses // where others reach the node: the first, and of pods with two IP families the other's
	tls           *tls.Config
	clientCAs     *x509.CertPool
	config        *rest.Config // as the node
	network       *rest.Config // as who may read what the proxy and the DNS follow
	dns           *rest.Config // as who may make the Service of the DNS, if there is such
	podCIDR       string       // the node's; empty: the one that the controllers give it
}

// ownPlace is that of the nodes in this process.
func ownPlace(ctx context.Context, p *parts, o *settled) error {
	if o.node == NodeNone {
		return nil
	}
	name := "simulated"
	if o.node == NodeCRI {
		var err error
		if name, err = nodeName(); err != nil {
			return err
		}
	}
	var addresses *uplink.Addresses
	if texts := p.forPods.texts(); len(texts) > 0 {
		addresses = uplink.Fixed(texts...)
	} else if address := p.listener.Addr().(*net.TCPAddr).IP; !address.IsUnspecified() {
		addresses = uplink.Fixed(reachable(address.String(), o.podCIDRs)...)
	} else {
		var err error
		if addresses, err = findAddresses(ctx, o, ""); err != nil {
			return err
		}
	}
	p.place = place{name: name, address: addresses.Texts()[0], addresses: addresses, clientCAs: p.pki.CA.Pool(), config: p.as(p.nodeUser(name)), network: p.as(p.component(controllers.Manager)), dns: p.ownConfig()}
	p.place.tls = p.place.secure()
	err := p.place.certified(o, func(hosts ...string) (tls.Certificate, error) {
		if o.node == NodeSimulated {
			return p.nodeCertificate("", hosts...) // one for all nodes that there are names no node
		}
		return p.nodeCertificate(name, hosts...)
	})
	if err != nil {
		return err
	}
	if o.node == NodeSimulated {
		p.place.config = p.asNodes()
	}
	if o.bare {
		p.place.podCIDR = o.podCIDR.String()
	}
	return nil
}

// secure is how the node's API speaks TLS, but for its certificate.
func (l *place) secure() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, ClientCAs: l.clientCAs, NextProtos: []string{"http/1.1"}}
}

// certified has the node's API serve a certificate that is made of the addresses that the node has.
func (l *place) certified(o *settled, sign func(hosts ...string) (tls.Certificate, error)) error {
	var current atomic.Pointer[tls.Certificate]
	renew := func() error {
		c, err := sign(l.addresses.Texts()...)
		if err == nil {
			current.Store(&c)
		}
		return err
	}
	if err := renew(); err != nil {
		return err
	}
	l.tls.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil }
	l.addresses.Tell(func() {
		if err := renew(); err != nil {
			o.log.Error("the node's certificate has its former addresses", "error", err)
		}
	})
	return nil
}

// listen is where the node's API listens if nobody says: an address that may change is not the one to bind to.
func (l *place) listen() string {
	if l.addresses.Fixed() {
		return net.JoinHostPort(l.address, "0")
	}
	return ":0"
}

// runNodes starts what runs pods, and serves its HTTP API on a port of its own.
func runNodes(ctx context.Context, p *parts, o *settled) error {
	if o.node == NodeNone {
		return nil
	}
	at := p.place
	log := o.log.With("part", "node")
	if o.node == NodeCRI {
		reviews, err := kubernetes.NewForConfig(at.config)
		if err != nil {
			return fmt.Errorf("make client of the node's API: %w", err)
		}
		measured := agent.NewMetrics()
		p.client("node's addresses", at.addresses.Run)
		api := server.Serve(o.kubelet.settings(server.Options{ClientCAs: at.clientCAs, Host: server.Host, Logger: log, Reviews: reviews, Metrics: measured.Gatherer()}))
		p.client("node", func(ctx context.Context) error {
			return agent.Run(ctx, agent.Options{
				NodeName: at.name, Config: at.config, RuntimeEndpoint: p.criSocket, RootDir: o.apiserver.Node.Root(o.dataDir),
				PodCIDR: at.podCIDR, Masqueraded: p.masqueraded, PodMTU: p.podMTU, Addresses: at.addresses, ClusterDNS: p.clusterDNS,
				Listen: o.kubelet.listenAt(at.listen()), Admit: p.forPods.admit(o), TLS: o.kubelet.secured(at.tls), API: api, Logger: log,
				Kubelet: o.kubelet.configuration(), DecodePods: staticPods(), Metrics: measured,
			})
		})
		return nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(at.address, "0"))
	if err != nil {
		return fmt.Errorf("listen for the node's API: %w", err)
	}
	p.client("simulated nodes", func(ctx context.Context) error {
		return simulated.Run(ctx, simulated.Options{
			Config: at.config, Alone: p.alone, Groups: p.nodeGroups, Nodes: o.nodes, Phases: p.phases, PodCIDR: simulatedRange(o), Version: version.Get().GitVersion,
			Listener: tls.NewListener(l, at.tls), TLS: at.tls, Serve: server.Serve(server.Options{ClientCAs: at.clientCAs, Logger: log}), Logger: log,
		})
	})
	return nil
}

// nodeName is the host's name as the kubelet takes it: lower case, without white space around it.
func nodeName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read host name: %w", err)
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
