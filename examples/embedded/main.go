// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command embedded is a server with three extensions in Go: an admission plug-in, a controller and a scheduler plug-in, each in its file.
// They run in the server's process, beside the built-in ones.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/extension/controller"
	"github.com/mortise-dev/mortise/extension/scheduler"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := &embed.Server{
		DataDir: "/tmp/embedded", KubeconfigFile: "/tmp/embedded/kubeconfig", Node: embed.NodeSimulated,
		// The profile that enables the scheduler plug-in.
		APIServer: options.APIServer{Scheduler: options.Scheduler{ConfigFile: "examples/embedded/scheduler.yaml"}},
		Extensions: embed.Extensions{
			Admission:        []admission.Plugin{teams{}},
			Controllers:      []controller.Controller{greeter()},
			SchedulerPlugins: map[string]scheduler.Factory{"Quiet": newQuiet},
		},
	}
	if err := s.Start(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer s.Stop()
	fmt.Println("embedded: ready at", s.URL())
	<-ctx.Done()
}
