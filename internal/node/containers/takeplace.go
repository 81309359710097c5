// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/mortise-dev/mortise/internal/agent/join"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/node"
)

// KubeletOptions are what kubelet knows of its cluster by its flags.
type KubeletOptions struct {
	Kubeconfig string // --kubeconfig: the API server, and the credentials of the node
	Name       string // --hostname-override; empty: the host's name
	Address    string // --node-ip; empty: the one from which it reaches the API server
}

// TakeKubeletsPlace starts a node as kubelet does, and returns when it runs. It has the credentials of a kubeconfig, and keeps its state
// below the root directory alone. Other programs run the network: there is no service proxy, no DNS, no route, and no CNI configuration
// of the node's own.
func TakeKubeletsPlace(ctx context.Context, o node.Options, of KubeletOptions) (*Node, error) {
	switch {
	case of.Kubeconfig == "":
		return nil, errors.New("no --kubeconfig: a node without an API server is not supported")
	case o.Settings.RootDir == "":
		return nil, errors.New("a node needs a root directory")
	}
	if _, err := nodeAddresses(of.Address); err != nil {
		return nil, err
	}
	o.Mode, o.DataDir, o.Count = node.CRI, o.Settings.RootDir, 1
	o.Settings.NoKubeletLinks, o.Settings.NoLocalStorage = true, true
	j := &joining{options: o}
	return j.start(ctx, append(steps{checkStep(), claimStep(), groupStep()},
		step{Name: "connect", Start: func(ctx context.Context, j *joining) error { return j.connectAsKubelet(ctx, of) }}, runStep()))
}

// connectAsKubelet creates the connection of a node with a kubeconfig.
func (j *joining) connectAsKubelet(ctx context.Context, of KubeletOptions) error {
	config, err := clientcmd.BuildConfigFromFlags("", of.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	hostname, err := node.HostName()
	if err != nil {
		return err
	}
	j.identity = join.Serving(j.options.Settings.RootDir, cmp.Or(of.Name, hostname), j.options.Logger.With("part", "join"))
	if j.addresses, err = j.kubeletsAddresses(ctx, of.Address, config.Host); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client of the kubeconfig: %w", err)
	}
	j.connection = &node.Connection{
		Name: j.identity.Name, Addresses: j.addresses, Config: config, Network: config, DNS: config, Joined: true, NetworkElsewhere: true,
	}
	return j.machine.secure(ctx, j.connection, j.identity, client, j.parts)
}

// kubeletsAddresses returns the node's addresses. A server at a loopback address says nothing of how others reach the node: then they are
// those of the default route, as with kubelet.
func (j *joining) kubeletsAddresses(ctx context.Context, given, server string) (*nodeaddress.Addresses, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, fmt.Errorf("read the server's URL: %w", err)
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if given == "" && (u.Hostname() == "localhost" || err == nil && ip.IsLoopback()) {
		return j.plan.FindAddresses(ctx, "")
	}
	return joinedAddresses(ctx, j.plan, given, server)
}
