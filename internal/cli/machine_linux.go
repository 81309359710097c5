// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

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

// destroyMachine removes what real containers left on this machine, unless a node with real containers runs.
func destroyMachine(ctx context.Context, dataDir string) error {
	claim, err := machine.Claim(ctx)
	if err != nil {
		return err
	}
	defer claim.Close()
	return errors.Join(machine.Destroy(ctx, dataDir), machine.RemoveNetwork(ctx))
}
