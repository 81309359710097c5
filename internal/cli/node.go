// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
)

// NodeOptions are the flags of `mortise node`.
type NodeOptions struct {
	DataDir, Join, Token string
	CACertHashes         []string
	CAFile               string
	Name, Address, Node  string
	CRISocket, PodCIDR   string
	Kubelet              options.Node
	Network              options.Network
	Logger               *slog.Logger
	Started              time.Time // when the process began, for the ready line
}

// runNode joins a cluster and stays until a signal or a failure ends the node.
func runNode(ctx context.Context, p Program, args []string) int {
	if len(args) > 0 && args[0] == "doctor" {
		return runDoctor(ctx, p, args[1:])
	}
	o, code, ok := parseNode(p, args)
	if !ok {
		return code
	}
	return stay(ctx, p, o.Logger, o.Started, func(ctx context.Context) (Cluster, error) { return p.Join(ctx, o) })
}

// parseNode reads the flags of `node`. When ok is false the command ends with code.
func parseNode(p Program, args []string) (o NodeOptions, code int, ok bool) {
	o.Started = processStart()
	f := pflag.NewFlagSet("node", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	var level string
	f.StringVar(&o.Join, "join", "", "`URL` of the API server; needed once")
	f.StringVar(&o.Token, "token", "", "bootstrap token, of `mortise token create`; needed once")
	f.StringArrayVar(&o.CACertHashes, "ca-cert-hash", nil, "sha256:`HASH` of the public key of the cluster's authority, as kubeadm prints it")
	f.StringVar(&o.CAFile, "ca-file", "", "`file` with the cluster's authority, instead of asking for it")
	f.StringVar(&o.Name, "name", "", "name of the node (default: the host's)")
	f.StringVar(&o.Address, "address", "", "`IP` address at which others reach the node, or one of each IP family: a,b (default: the one from which it reaches the server, also when it changes, and where pods have both families the other's on that interface)")
	f.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "where the node keeps who it is, and its pods")
	f.StringVar(&o.Node, "node", "auto", "auto, cri (or real): real containers, simulated: pods without containers")
	f.StringVar(&o.CRISocket, "cri-socket", "", "the runtime's socket (default: containerd's)")
	f.StringVar(&o.PodCIDR, "pod-cidr", "10.244.0.0/16", "addresses of all pods of the cluster, as `mortise up` has them")
	o.Kubelet.AddFlags(f)
	o.Network.AddFlags(f)
	f.StringVar(&level, "log-level", "warn", "debug, info, warn or error")
	f.Usage = func() {
		fmt.Fprintf(p.Err, "Usage: mortise node --join URL --token TOKEN [flags]\n\nRuns a node in the foreground. SIGTERM or Ctrl-C stops it; pods are left running. A node that has joined is started again\nwith its data directory alone. `mortise node doctor` examines the node of this machine.\n\n%s", f.FlagUsages())
	}
	if err := f.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return o, 0, false
		}
		fmt.Fprintf(p.Err, "mortise node: %v\n", err)
		return o, 2, false
	}
	wrong := func(format string, a ...any) (NodeOptions, int, bool) {
		fmt.Fprintf(p.Err, "mortise node: "+format+"\n", a...)
		return o, 2, false
	}
	if f.NArg() > 0 {
		return wrong("unexpected argument %q", f.Arg(0))
	}
	if o.Node == "real" {
		o.Node = "cri"
	}
	if !slices.Contains([]string{"auto", "cri", "simulated"}, o.Node) {
		return wrong("--node %q: want auto, cri or simulated", o.Node)
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return wrong("--log-level %q: want debug, info, warn or error", level)
	}
	o.Logger = slog.New(slog.NewTextHandler(p.Err, &slog.HandlerOptions{Level: l}))
	var err error
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return wrong("--data-dir: %v", err)
	}
	return o, 0, true
}
