// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/config"
)

const configUsage = `Usage: mortise config print [--defaults] [flags of "mortise up"]

Prints the configuration with which "mortise up" would start by the same flags, as a ServerConfiguration of
config.mortise.dev/v1alpha1: defaults, overridden by the file of --config, overridden by flags. "mortise up --config" reads it.
`

// runConfig prints the configuration of a server.
func runConfig(_ context.Context, p Program, args []string) int {
	if len(args) == 0 {
		fmt.Fprint(p.Err, configUsage)
		return 2
	}
	switch args[0] {
	case "help", "-h", "--help":
		fmt.Fprint(p.Out, configUsage)
		return 0
	case "print":
		return printConfig(p, args[1:])
	}
	fmt.Fprintf(p.Err, "mortise config: unknown command %q: want print\n", args[0])
	return 2
}

func printConfig(p Program, args []string) int {
	var o UpOptions
	u := newUpFlags("config print", p, &o)
	var defaults bool
	u.set.BoolVar(&defaults, "defaults", false, "Print the defaults alone.")
	applied, code, ok := u.read(p, args)
	if !ok {
		return code
	}
	if defaults {
		given := 0
		u.set.Visit(func(*pflag.Flag) { given++ })
		if given > 1 {
			fmt.Fprintln(p.Err, "mortise config print: --defaults takes no other flags")
			return 2
		}
	}
	if err := u.finish(p, &o); err != nil {
		fmt.Fprintf(p.Err, "mortise config print: %v\n", applied.Explain(err))
		return 2
	}
	c, err := config.Effective(u.set)
	if err != nil {
		fmt.Fprintf(p.Err, "mortise config print: %v\n", err)
		return 2
	}
	text, err := config.Marshal(c)
	if err != nil {
		return fail(p, err)
	}
	if _, err := p.Out.Write(text); err != nil {
		return fail(p, err)
	}
	return 0
}
