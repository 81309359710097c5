// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/join"
	"github.com/mortise-dev/mortise/internal/agent/uplink"
)

// Node is a node of a cluster whose API server is elsewhere. Start it once, Stop it once.
type Node struct {
	// DataDir is where the node keeps who it is, and what it must remember of its pods. Required.
	DataDir string
	// Join is the URL of the API server, and Token a bootstrap token; both may be empty once the node has joined.
	Join, Token string
	// CACertHashes pin the cluster's authority, each sha256: and the hash of its public key; CAFile holds it. Without both, who
	// knows the token is believed.
	CACertHashes []string
	CAFile       string
	// Name is the node's; empty: the host's name.
	Name string
	// Address is where others reach the node: one, or one of each IP family behind a comma. Empty: the address from which it reaches
	// the API server, whatever that becomes while it runs. Where pods have both families, the other's address on the same interface is
	// added to one.
	Address string
	// Mode is what runs pods: auto, cri or simulated; empty: auto.
	Mode NodeMode
	// CRISocket is the runtime's socket, as in [Server].
	CRISocket string
	// PodCIDR is the range of all pods' addresses in the cluster, as in [Server]; empty: 10.244.0.0/16.
	PodCIDR string
	// Kubelet and Network are the node's settings, as in [Server.APIServer].
	Kubelet options.Node
	Network options.Network
	// Logger is told what goes on; nil: nobody is.
	Logger *slog.Logger

	identity *join.Identity
	parts    parts
	stop     sync.Once
	err      error // of Stop
}

// Start joins the cluster, or takes up where the node was, and returns when the node is at work. What is wrong with the token,
// the authority or the name is an error; a server that is away is one only if the node has not joined yet.
func (n *Node) Start(ctx context.Context) (err error) {
	o, err := n.settle()
	if err != nil {
		return err
	}
	p := &n.parts
	p.settled = make(chan struct{})
	close(p.settled)
	p.ledger = extension.NewLedger(clock.RealClock{})
	p.context, p.cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			n.Stop()
		}
	}()
	return p.begin(ctx, o, []start{
		{"find a runtime", findNode},
		{"check the node's network", checkNetwork},
		{"open the data directory", openDirectory},
		{"join", n.join},
		{"run the node's network", runNetwork},
		{"run the node", runNodes},
	})
}

// settle fills in and checks what the caller wrote, before anything is touched.
func (n *Node) settle() (*settled, error) {
	o := &settled{dataDir: n.DataDir, store: "local", node: cmp.Or(n.Mode, NodeAuto), nodes: 1, criSocket: n.CRISocket, log: n.Logger}
	o.apiserver.Node, o.apiserver.Network = n.Kubelet, n.Network
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.dataDir == "":
		return nil, errors.New("a node needs a data directory")
	case !slices.Contains([]NodeMode{NodeAuto, NodeCRI, NodeSimulated}, o.node):
		return nil, fmt.Errorf("node %q: want auto, cri or simulated", o.node)
	}
	if _, err := nodeAddresses(n.Address); err != nil {
		return nil, err
	}
	var err error
	if o.podCIDRs, _, err = podRanges(cmp.Or(n.PodCIDR, defaultPodRange), options.Masks{}); err != nil {
		return nil, err
	}
	o.podCIDR = o.podCIDRs[0]
	return o, nil
}

// identityDir is where a node that joined keeps who it is.
func identityDir(o *settled) string { return filepath.Join(o.dataDir, "node") }

// join makes the node one of the cluster's, and its place.
func (n *Node) join(ctx context.Context, p *parts, o *settled) (err error) {
	joining := join.Options{
		Dir: identityDir(o), Name: n.Name, Server: n.Join, Token: n.Token, Hashes: n.CACertHashes, CAFile: n.CAFile, Logger: o.log.With("part", "join"),
	}
	if joining.Hostname, err = nodeName(); err != nil {
		return err
	}
	if n.identity, err = join.Open(ctx, joining); err != nil {
		return err
	}
	config, err := n.identity.Config()
	if err != nil {
		return err
	}
	config.QPS = -1
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client of the node's certificates: %w", err)
	}
	addresses, err := n.reached(ctx, o)
	if err != nil {
		return err
	}
	addresses.Tell(n.identity.Reconnect)
	at := place{name: n.identity.Name, address: addresses.Texts()[0], addresses: addresses, config: config, network: config, dns: config}
	if at.clientCAs, err = n.identity.Pool(); err != nil {
		return fmt.Errorf("read the cluster's authority: %w", err)
	}
	at.tls = at.secure()
	if k := o.kubelet; k != nil && k.ServerTLSBootstrap {
		if at.tls.GetCertificate, err = n.identity.Serving(p.context, client, addresses.Texts); err != nil {
			return err
		}
	} else if err = at.certified(o, func(hosts ...string) (tls.Certificate, error) { return n.identity.SelfSigned(time.Now(), hosts...) }); err != nil {
		return err
	}
	p.place = at
	if o.node == NodeSimulated {
		p.alone = at.name
	}
	p.client("certificates", func(ctx context.Context) error { return n.identity.Rotate(ctx, client) })
	return nil
}

// reached is where others reach the node.
func (n *Node) reached(ctx context.Context, o *settled) (*uplink.Addresses, error) {
	said, err := nodeAddresses(n.Address)
	switch {
	case err != nil:
		return nil, err
	case len(said) == 1:
		return uplink.Fixed(reachable(said[0].String(), o.podCIDRs)...), nil
	case len(said) > 1:
		return uplink.Fixed(said[0].String(), said[1].String()), nil
	}
	u, err := url.Parse(n.identity.Server)
	if err != nil {
		return nil, fmt.Errorf("read the server's URL: %w", err)
	}
	return findAddresses(ctx, o, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
}

// Stop ends the node cleanly. Pods of a real node are left running. More calls return the same.
func (n *Node) Stop() error {
	n.stop.Do(func() { n.err = n.parts.end() })
	return n.err
}

// Wait blocks until the node ends: nil after Stop, the reason when a part of it ended by itself.
func (n *Node) Wait() error {
	<-n.parts.context.Done()
	if cause := n.parts.failure(); cause != nil {
		return cause
	}
	return n.Stop()
}

// Settled is closed: a node has nothing to fill up with.
func (n *Node) Settled() <-chan struct{} { return n.parts.settled }

// Ready describes the running node: the cluster's URL, where its own kubeconfig lies, its name and what runs its pods.
func (n *Node) Ready() (url, kubeconfig, node string) {
	return n.identity.Server, filepath.Join(n.DataDir, "node", join.ConfigFile), n.identity.Name + ", " + n.parts.nodeText
}
