// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package cli implements the command line: one file for each command, and one table of the commands in this file.
//
// A command parses its own flags, does its work through [Program], and returns an exit code: 0 means success, 1 a failure (a line on Err
// says why, and a second one what to do next), 2 a wrong command line. Nothing here starts a server or opens a store by itself: cmd/mortise
// passes these functions in, so that this package imports none of the server's packages.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/config"
)

// Program has the functions that commands use.
type Program struct {
	In       io.Reader
	Out, Err io.Writer
	// Start starts a cluster and returns when it is ready.
	Start func(ctx context.Context, o UpOptions) (Cluster, error)
	// Join starts a node of a cluster elsewhere, and returns when the node works. Nil, as Examine and PluginBench: this system has no
	// containers.
	Join func(ctx context.Context, o NodeOptions) (Cluster, error)
	// Authorities determines the CA (PEM) of the cluster of a server, by a bootstrap token and the CA's hash. It sends no secret.
	Authorities func(ctx context.Context, server, token, hash string) ([]byte, error)
	// Engines are the store engines for --store, the default first.
	Engines []Engine
	// AddFlags binds the settings of an API server and its controllers to flags.
	AddFlags func(f *pflag.FlagSet, o *options.APIServer)
	// Judge validates definitions offline.
	Judge Judge
	// Examine examines the node of this machine.
	Examine Examine
	// PluginBench drives a plug-in of the node.
	PluginBench PluginBench
	// EnsureDNS creates the Service of the cluster DNS if there is none, and returns its address.
	EnsureDNS func(ctx context.Context, client kubernetes.Interface) (address netip.Addr, made bool, err error)
}

// Engine is a store engine with its name and its description for the help of --store.
type Engine struct{ Name, Usage string }

// Cluster is a running cluster.
type Cluster interface {
	// Ready describes the running cluster for the ready line.
	Ready() (url, kubeconfig, node string)
	// Settled is closed when everything has started and is idle.
	Settled() <-chan struct{}
	// Wait blocks until a part of the cluster ends by itself, and returns why; nil after Stop.
	Wait() error
	// Stop stops the cluster cleanly: all state is on disk, and pods keep running.
	Stop() error
}

// UpOptions are the flags of `mortise up`.
type UpOptions struct {
	DataDir, Listen, Kubeconfig, Store string
	Join, Token                        string // the server to join, and a token of serverjoin; empty: none
	Node                               string
	Nodes                              int
	CRISocket, PodCIDR, ServiceCIDR    string
	Controllers                        []string
	FeatureGates                       map[string]bool
	RuntimeConfig                      map[string]string
	APIServer                          options.APIServer
	Logger                             *slog.Logger
	Started                            time.Time         // the start time of the process, for the ready line
	Progress                           func(step string) // is called as each step of the start begins

	applied *config.Applied // by --config; nil: no file
}

// verb is one row of the table of commands.
type verb struct {
	name, args, about string
	run               func(ctx context.Context, p Program, args []string) int
	// words are what follows the name, and those with ! before them have a help of their own.
	words string
}

// verbs are the commands in the order of the help.
func verbs() []verb {
	return []verb{
		{"up", "[flags]", "start a cluster in the foreground", runUp, ""},
		{"node", "--join URL|doctor|plugin-bench", "join this machine to a cluster as a node, diagnose a node, or test a plug-in of nodes",
			runNode, "!doctor !plugin-bench"},
		{"token", "create|list|delete", "manage the bootstrap tokens with which nodes join", runToken, "!create !list !delete"},
		{"config", "print", "print the configuration of a server, as a file for `up --config`", runConfig, "print"},
		{"kubectl", "ARGS...", "run kubectl, which is built in", runKubectl, ""},
		{"machine", "prepare", "install and start what a real node needs: containerd, CNI plug-ins, images",
			runMachine, "prepare stop destroy"},
		{"crd", "check FILE...", "validate CustomResourceDefinitions without a server", runCRD, "check"},
		{"explain", "ID|TYPE/NAME [FIELD]", "show what changed or rejected a write, and what set a field", runExplain, ""},
		{"extensions", "[points] [-o json|wide]", "list the extensions of a running server and their health", runExtensions, "points"},
		{"console", "[--open]", "print a link that opens the console of a running server, a web page", runConsole, ""},
		{"webhook", "dev --url URL -f FILE", "redirect webhooks to a process on this machine", runWebhook, "dev"},
		{"credential", "service-account|file|oidc", "print a token for a kubeconfig's exec section",
			runCredential, "!service-account !file !oidc"},
		{"doctor", "[flags]", "find what is missing or wrong on this machine and in the cluster, and what mends it", runDoctors, ""},
		{"reset", "[flags]", "remove pods, network rules, interfaces and mounts that a node made on this machine", runReset, ""},
		{"store", "check|backup|restore", "check, back up or restore a data directory that is not in use",
			runStore, "check backup restore export import"},
		{"docs", "[--man DIR]", "serve this version's documentation on this machine, or write it", runDocs, ""},
		{"completion", "bash|zsh|fish", "print the completion of a shell", runCompletion, "bash zsh fish"},
		{"version", "[-o json]", "print the version", runVersion, ""},
	}
}

// Main runs the command that args name, and returns the exit code of the process.
func Main(ctx context.Context, args []string, p Program) int {
	if len(args) == 0 {
		usage(p.Err)
		return 2
	}
	switch args[0] {
	case "help", "-h", "--help":
		usage(p.Out)
		return 0
	}
	if args[0] == completeCommand {
		return complete(ctx, p, args[1:])
	}
	for _, v := range verbs() {
		if v.name == args[0] {
			return v.run(ctx, p, args[1:])
		}
	}
	fmt.Fprintf(p.Err, "mortise: unknown command %q; `mortise help` lists them\n", args[0])
	return 2
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "mortise: a Kubernetes-compatible control plane and node in one binary\n\nUsage:")
	for _, v := range verbs() {
		fmt.Fprintf(w, "  mortise %-10s %-23s %s\n", v.name, v.args, v.about)
	}
	fmt.Fprintln(w, "\n`mortise COMMAND --help` explains a command's flags.")
}

// errNeedsLinux refuses what runs containers.
var errNeedsLinux = errors.New("containers need Linux: here, mortise up runs simulated nodes, whose pods have no containers")
