// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command mortise is a Kubernetes-compatible control plane and node in one binary. `mortise up` starts a cluster,
// `mortise kubectl` talks to it; `mortise help` lists the rest. Under the name kubectl it is `mortise kubectl`.
package main

import (
	"context"
	"os"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/etcdprotocol"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/agent/join"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/cli"
	"github.com/mortise-dev/mortise/internal/node"
)

func main() {
	if run := programNamed(os.Args[0]); run != nil {
		os.Exit(mainOf(run))
	}
	p := cli.Program{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Engines:  engines(),
		AddFlags: func(f *pflag.FlagSet, o *options.APIServer) { embed.AddFlags(f, o) },
		Judge:    judge, EnsureDNS: node.EnsureDNS,
		Authorities: func(ctx context.Context, server, token, hash string) ([]byte, error) {
			return join.Authorities(ctx, join.Options{Server: server, Token: token, Hashes: []string{hash}})
		},
	}
	containers := addContainers(&p)
	p.Start = func(ctx context.Context, o cli.UpOptions) (cli.Cluster, error) {
		s := &embed.Server{
			DataDir: o.DataDir, Listen: o.Listen, KubeconfigFile: o.Kubeconfig, Store: o.Store,
			Node: embed.NodeMode(o.Node), Nodes: o.Nodes, CRISocket: o.CRISocket, Containers: containers,
			PodCIDR: o.PodCIDR, ServiceCIDR: o.ServiceCIDR, Controllers: o.Controllers, FeatureGates: o.FeatureGates,
			RuntimeConfig: o.RuntimeConfig,
			APIServer:     o.APIServer, Logger: o.Logger, Started: o.Started, Progress: o.Progress,
			Extensions: embed.Extensions{EtcdProtocol: etcdprotocol.Serve},
		}
		if err := s.Start(ctx); err != nil {
			return nil, err
		}
		return started{s}, nil
	}
	os.Exit(cli.Main(context.Background(), cli.Arguments(os.Args), p))
}

// embedded is a cluster of package embed, or a node of package node there.
type embedded interface {
	Ready() embed.Ready
	Settled() <-chan struct{}
	Wait() error
	Stop() error
}

// started is a cluster or a node as the command line takes it.
type started struct{ embedded }

// Ready implements [cli.Cluster].
func (s started) Ready() (url, kubeconfig, node string) {
	r := s.embedded.Ready()
	return r.URL, r.Kubeconfig, r.Pods
}

// engines are the store engines that `mortise up` selects from.
func engines() (all []cli.Engine) {
	for _, e := range builtin.Engines() {
		all = append(all, cli.Engine{Name: e.Name, Usage: e.Usage})
	}
	return all
}
