// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command embedded is a server with three extensions in Go: an admission plug-in, a controller and a scheduler plug-in, each in its file.
// They run in the server's process, beside the built-in ones. Run it in the root of the repository, where it finds its scheduler.yaml.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/extension/controller"
	"github.com/mortise-dev/mortise/extension/scheduler"
)

func main() {
	dir := flag.String("dir", "/tmp/embedded", "data directory")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	s := &embed.Server{
		DataDir: *dir, KubeconfigFile: filepath.Join(*dir, "kubeconfig"), Node: embed.NodeSimulated,
		APIServer: options.APIServer{
			// The profile that enables the scheduler plug-in.
			Scheduler: options.Scheduler{ConfigFile: "examples/embedded/scheduler.yaml"},
			Explain:   options.Explain{Enabled: true}, // for "mortise explain"
		},
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
	fmt.Printf("embedded: Ready at %s, kubeconfig %s\n", s.URL(), s.KubeconfigFile)
	<-ctx.Done()
}
