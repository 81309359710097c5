// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/agent/join"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress/kernel"
	"github.com/mortise-dev/mortise/internal/datadir"
	"github.com/mortise-dev/mortise/internal/lifecycle"
	"github.com/mortise-dev/mortise/internal/node"
)

// JoinOptions select the cluster that a node joins, and how.
type JoinOptions struct {
	// Server is the API server's URL, and Token a bootstrap token; both may be empty once the node has joined.
	Server, Token string
	// CACertHashes and CAFile pin the cluster's CA.
	CACertHashes []string
	CAFile       string
	Name         string // empty: the host's name
	Address      string // for other hosts; empty: the one from which the node reaches the API server
}

// Node is a node of a cluster whose API server is elsewhere.
type Node struct {
	*lifecycle.Process
	server, text string
}

// Server returns the URL of the API server.
func (n *Node) Server() string { return n.server }

// Text describes the node: its name and what runs its pods.
func (n *Node) Text() string { return n.text }

// Kubeconfig returns the path of the node's own kubeconfig below its data directory.
func Kubeconfig(dataDir string) string { return filepath.Join(identityDir(dataDir), join.ConfigFile) }

// identityDir returns the directory of a joined node's identity.
func identityDir(dataDir string) string { return filepath.Join(dataDir, "node") }

// known is a machine whose plan is known. It implements [node.Containers].
type known struct{ plan *Plan }

// Plan implements [node.Containers].
func (k known) Plan(context.Context, *node.Options) (node.Machine, string, error) {
	if k.plan.Mode != node.CRI {
		return nil, k.plan.text, nil
	}
	return k.plan, k.plan.text, nil
}

// Addresses implements [node.Containers].
func (known) Addresses() nodeaddress.Machine { return kernel.Linux{} }

// joining is the results of Join's steps so far.
type joining struct {
	process    *lifecycle.Process
	options    node.Options
	to         JoinOptions
	machine    *Plan // read for any mode
	plan       *node.Plan
	claim      io.Closer // of the machine
	dir        *datadir.Dir
	parts      *lifecycle.Group // the clients of the API server
	identity   *join.Identity
	addresses  *nodeaddress.Addresses
	connection *node.Connection
}

// A step is one of a node's start.
type (
	step  = lifecycle.Step[*joining]
	steps = []step
)

// joinSteps returns the steps in the order of a node's start.
func joinSteps() steps {
	return steps{
		checkStep(),
		claimStep(),
		{
			Name: "open the data directory",
			Start: func(_ context.Context, j *joining) (err error) {
				j.dir, err = datadir.Open(j.options.DataDir)
				return err
			},
			Stop: func(j *joining) error { return j.dir.Close() },
		},
		groupStep(),
		{Name: "join", Start: func(ctx context.Context, j *joining) (err error) {
			j.identity, err = openIdentity(ctx, j.machine, j.to)
			return err
		}},
		{Name: "find the node's addresses", Start: func(ctx context.Context, j *joining) (err error) {
			j.addresses, err = joinedAddresses(ctx, j.plan, j.to.Address, j.identity.Server)
			return err
		}},
		{Name: "connect", Start: func(ctx context.Context, j *joining) (err error) {
			j.connection, err = j.machine.connect(ctx, j.identity, j.addresses, j.parts)
			return err
		}},
		runStep(),
	}
}

func checkStep() step {
	return step{Name: "check the settings", Start: func(ctx context.Context, j *joining) (err error) {
		if j.machine, err = check(ctx, &j.options); err != nil {
			return err
		}
		j.options.Containers = known{j.machine}
		j.plan, err = node.Check(ctx, j.options)
		return err
	}}
}

func claimStep() step {
	return step{
		Name: "claim the machine",
		Start: func(ctx context.Context, j *joining) (err error) {
			j.claim, err = j.plan.Claim(ctx)
			return err
		},
		Stop: func(j *joining) error { return j.claim.Close() },
	}
}

func groupStep() step {
	return step{
		Name:  "group the clients of the API server",
		Start: func(_ context.Context, j *joining) error { j.parts = j.process.Dependents(); return nil },
		Stop:  func(j *joining) error { j.parts.Stop(); return nil },
	}
}

func runStep() step {
	return step{Name: "run the node", Start: func(ctx context.Context, j *joining) error {
		return j.plan.Run(ctx, j.connection, j.parts)
	}}
}

// Join joins the cluster, or continues as the node that joined it, and returns when the node runs. An invalid token, CA or name is an
// error; an unreachable server is one only if the node has not joined yet.
func Join(ctx context.Context, o node.Options, to JoinOptions) (*Node, error) {
	switch {
	case o.DataDir == "":
		return nil, errors.New("a node needs a data directory")
	case !slices.Contains([]node.Mode{node.Auto, node.CRI, node.Simulated}, o.Mode):
		return nil, fmt.Errorf("node %q: want auto, cri or simulated", o.Mode)
	}
	if _, err := nodeAddresses(to.Address); err != nil {
		return nil, err
	}
	return (&joining{options: o, to: to}).start(ctx, joinSteps())
}

// start starts a node by its steps.
func (j *joining) start(ctx context.Context, all steps) (*Node, error) {
	process, err := lifecycle.Start(ctx, all, func(p *lifecycle.Process) *joining {
		j.process = p
		return j
	})
	if err != nil {
		return nil, err
	}
	return &Node{Process: process, server: j.connection.Config.Host, text: j.identity.Name + ", " + j.plan.Text}, nil
}

// openIdentity joins the cluster, or opens the identity of the node that joined it.
func openIdentity(ctx context.Context, p *Plan, to JoinOptions) (*join.Identity, error) {
	hostname, err := node.HostName()
	if err != nil {
		return nil, err
	}
	return join.Open(ctx, join.Options{
		Dir: identityDir(p.DataDir), Name: to.Name, Server: to.Server, Token: to.Token, Hashes: to.CACertHashes, CAFile: to.CAFile,
		Hostname: hostname, Logger: p.Logger.With("part", "join"),
	})
}

// nodeAddresses parses the addresses at which other hosts reach a node: one, or one of each IP family behind a comma; none for the empty
// text.
func nodeAddresses(text string) (out []netip.Addr, err error) {
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("address %q: want an IP address", text)
		}
		out = append(out, a.Unmap())
	}
	if len(out) > 2 || len(out) == 2 && out[0].Is4() == out[1].Is4() {
		return nil, fmt.Errorf("address %q: want one IP address, or one of each IP family", text)
	}
	return out, nil
}

// connect creates the connection of a joined node, and renews its certificates.
func (p *Plan) connect(
	ctx context.Context, identity *join.Identity, addresses *nodeaddress.Addresses, parts *lifecycle.Group,
) (*node.Connection, error) {
	config, err := identity.Config()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	config.UserAgent = rest.DefaultKubernetesUserAgent()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of the node's certificates: %w", err)
	}
	addresses.Tell(identity.Reconnect)
	c := &node.Connection{Name: identity.Name, Addresses: addresses, Config: config, Network: config, DNS: config, Joined: true,
		Given: addresses.Fixed()}
	if c.ClientCAs, err = identity.Pool(); err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	if err := p.secure(ctx, c, identity, client, parts); err != nil {
		return nil, err
	}
	parts.Run(ctx, "certificates", func(ctx context.Context) error { return identity.Rotate(ctx, client) })
	parts.Run(ctx, "API servers", func(ctx context.Context) error { return identity.Follow(ctx, client) })
	return c, nil
}

// secure gives the node's API a serving certificate: one of the cluster, if the configuration wants it, else a self-signed one.
func (p *Plan) secure(
	ctx context.Context, c *node.Connection, identity *join.Identity, client kubernetes.Interface, parts *lifecycle.Group,
) error {
	if k := p.kubelet; k != nil && k.ServerTLSBootstrap {
		certificate, err := identity.Serving(parts.Context(ctx), client, c.Addresses.Texts)
		if err != nil {
			return err
		}
		c.ServeBy(certificate)
		return nil
	}
	return c.Serve(func(hosts ...string) (tls.Certificate, error) { return identity.SelfSigned(time.Now(), hosts...) }, p.Logger)
}

// joinedAddresses returns the addresses at which other hosts reach a node that joined: the given ones, or those from which it reaches the
// server.
func joinedAddresses(ctx context.Context, p *node.Plan, given, server string) (*nodeaddress.Addresses, error) {
	all, err := nodeAddresses(given)
	switch {
	case err != nil:
		return nil, err
	case len(all) == 1:
		return nodeaddress.Fixed(node.Reachable(all[0].String(), p.PodCIDRs)...), nil
	case len(all) > 1:
		return nodeaddress.Fixed(all[0].String(), all[1].String()), nil
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("read the server's URL: %w", err)
	}
	return p.FindAddresses(ctx, net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
}
