// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
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
	Started              time.Time // the start time of the process, for the ready line
}

// runNode joins a cluster and runs until a signal or a failure ends the node.
func runNode(ctx context.Context, p Program, args []string) int {
	if len(args) > 0 && args[0] == "doctor" {
		return runDoctor(ctx, p, args[1:])
	}
	if len(args) > 0 && args[0] == "plugin-bench" {
		return runPluginBench(ctx, p, args[1:])
	}
	o, code, ok := parseNode(p, args)
	if !ok {
		return code
	}
	if p.Join == nil {
		return fail(p, errNeedsLinux)
	}
	starts := newProgress(p.Err)
	starts.begin("join the cluster")
	return stay(ctx, p, run{log: o.Logger, started: o.Started, progress: starts},
		func(ctx context.Context) (Cluster, error) { return p.Join(ctx, o) })
}

// newNodeFlags binds the flags of `node` to o.
func newNodeFlags(p Program, o *NodeOptions) (f *pflag.FlagSet, level *string, help *helpFlag) {
	f = pflag.NewFlagSet("node", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	level = new(string)
	help = new(helpFlag)
	f.StringVar(&o.Join, "join", "", "`URL` of the API server. Needed the first time.")
	f.StringVar(&o.Token, "token", "", "Bootstrap token from mortise token create. Needed the first time.")
	f.StringArrayVar(&o.CACertHashes, "ca-cert-hash", nil,
		"sha256:`HASH` of the public key of the cluster's certificate authority, as kubeadm prints it. May be repeated.")
	f.StringVar(&o.CAFile, "ca-file", "",
		"`FILE` with the cluster's certificate authority, as PEM. Default: the node downloads it from the API server.")
	f.StringVar(&o.Name, "name", "", "Name of the node. Default: the host name.")
	f.StringVar(&o.Address, "address", "",
		"`IP` address of the node, or one of each family, separated by a comma. Default: the source address of its connections to the API server.")
	f.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "Directory of the node's identity and of its pods.")
	f.StringVar(&o.Node, "node", "auto",
		"What runs pods: cri (real containers), simulated (pods without containers), or auto (cri if possible, else simulated).")
	f.StringVar(&o.CRISocket, "cri-socket", "", "Socket of the container runtime. Default: containerd's.")
	f.StringVar(&o.PodCIDR, "pod-cidr", "10.244.0.0/16", "Address range of all pods of the cluster. The same as of the server.")
	o.Kubelet.AddFlags(f)
	o.Network.AddFlags(f)
	f.StringVar(level, "log-level", "warn", "Lowest level to log: debug, info, warn or error.")
	help.add(f)
	f.Usage = func() {}
	return f, level, help
}

// parseNode parses the flags of `node`. If ok is false the command ends with code.
func parseNode(p Program, args []string) (o NodeOptions, code int, ok bool) {
	o.Started = processStart()
	f, level, help := newNodeFlags(p, &o)
	if code, done := parseFlags(p, f, args, help, func() int { return help.print(p, f, nodeUsage, nodeFlags) }); done {
		return o, code, false
	}
	if err := o.finish(p, *level); err != nil {
		return o, refuse(p, "node", err), false
	}
	return o, 0, true
}

// finish validates the flags and derives other settings from them.
func (o *NodeOptions) finish(p Program, level string) (err error) {
	if o.Node == "real" {
		o.Node = "cri"
	}
	if !slices.Contains([]string{"auto", "cri", "simulated"}, o.Node) {
		return fmt.Errorf("--node %q: want auto, cri or simulated", o.Node)
	}
	if o.Logger, err = newLogger(p, level); err != nil {
		return err
	}
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return nil
}
