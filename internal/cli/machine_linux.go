// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/machine"
)

// runMachine prepares this machine for real containers. It prints the runtime's socket on Out.
func runMachine(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("machine", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	o := machine.Options{Progress: p.Err}
	f.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "Directory of the containerd that the command starts if the machine has none.")
	f.StringVar(&o.Socket, "cri-socket", "", "Socket of an existing container runtime to use.")
	f.BoolVar(&o.NoInstall, "no-install", false, "Fail if programs are missing instead of installing them.")
	f.StringVar(&o.CNIConfDir, "cni-conf-dir", "",
		"Directory of CNI configurations of the containerd that the command starts. Default: a directory of its own below --data-dir.")
	f.BoolVar(&o.NoImages, "no-images", false, "Do not load the local images.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), "Usage: mortise machine prepare|stop|destroy [flags]\n\nprepare installs and starts what real containers need, and loads the local images. stop stops the containerd that prepare\nstarted; its pods keep running. destroy stops the pods too, and removes the network rules of Services and pods.\n\n%s", f.FlagUsages())
	}
	if code, done := parse(p, f, "machine", args); done {
		return code
	}
	if f.NArg() != 1 {
		f.Usage()
		return 2
	}
	var err error
	switch f.Arg(0) {
	case "prepare":
		var socket string
		if socket, err = machine.Prepare(ctx, o); err == nil {
			fmt.Fprintln(p.Out, socket)
		}
	case "stop":
		err = machine.Stop(ctx, o.DataDir)
	case "destroy":
		err = destroyMachine(ctx, o.DataDir)
	default:
		f.Usage()
		return 2
	}
	if err != nil {
		return fail(p, err)
	}
	return 0
}

// runReset removes what a node has made on this machine.
func runReset(ctx context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("reset", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	f.SortFlags = false
	var o machine.ResetOptions
	var yes bool
	f.StringVar(&o.DataDir, "data-dir", defaultDataDir(), "Data directory of mortise up, or of the node.")
	f.StringVar(&o.RootDir, "root-dir", "", "Directory of the pods' volumes. Default: DATA-DIR/kubelet.")
	f.StringVar(&o.Socket, "cri-socket", "", "Socket of the container runtime that ran the pods. Default: containerd's.")
	f.BoolVar(&o.Data, "data", false, "Remove the data directory, too: all objects, certificates and volumes are lost.")
	f.BoolVar(&yes, "yes", false, "Do not ask.")
	f.Usage = func() {
		fmt.Fprintf(f.Output(), `Usage: mortise reset [flags]

Removes what a node with real containers has made on this machine, and nothing else: its pods with their sandboxes and mounts, network
rules and interfaces, links below /var/lib/kubelet, and the containerd of "mortise machine prepare". Pods of others in the same container
runtime stay. Objects stay, so that "mortise up" creates the pods again, unless --data is given. Stop the server and the node first.

%s`, f.FlagUsages())
	}
	if code, done := parse(p, f, "reset", args); done {
		return code
	}
	if f.NArg() > 0 {
		f.Usage()
		return 2
	}
	var err error
	if o.DataDir, err = filepath.Abs(o.DataDir); err != nil {
		return fail(p, fmt.Errorf("find data directory: %w", err))
	}
	if o.RootDir == "" {
		o.RootDir = filepath.Join(o.DataDir, "kubelet")
	}
	if !yes {
		what := "the pods of " + o.DataDir
		if o.Data {
			what += ", and the directory with all objects"
		}
		fmt.Fprintf(p.Err, "mortise reset removes %s. Type yes to go on: ", what)
		answer, err := bufio.NewReader(p.In).ReadString('\n')
		if strings.TrimSpace(answer) != "yes" {
			return fail(p, errors.Join(errors.New("nothing is removed: --yes does not ask"), ignoreEOF(err)))
		}
	}
	removed, err := machine.Reset(ctx, o)
	for _, what := range removed {
		fmt.Fprintln(p.Out, "removed", what)
	}
	if err != nil {
		return fail(p, err)
	}
	return 0
}

// ignoreEOF returns nil for the end of the input.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// destroyMachine removes what real containers left on this machine, unless a node with real containers runs.
func destroyMachine(ctx context.Context, dataDir string) error {
	claim, err := machine.Claim(ctx)
	if err != nil {
		return err
	}
	defer claim.Close()
	return errors.Join(machine.Destroy(ctx, dataDir), machine.RemoveNetwork(ctx))
}
