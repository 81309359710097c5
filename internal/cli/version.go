// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/internal/version"
)

// runVersion prints the version of this binary; with -o json in the form of the API's /version.
func runVersion(_ context.Context, p Program, args []string) int {
	f := pflag.NewFlagSet("version", pflag.ContinueOnError)
	f.SetOutput(p.Err)
	output := f.StringP("output", "o", "", "Output format: json.")
	if code, done := parse(p, f, "version", args); done {
		return code
	}
	v := version.Get()
	switch *output {
	case "":
		fmt.Fprintln(p.Out, v.GitVersion)
	case "json":
		b, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fail(p, err)
		}
		fmt.Fprintln(p.Out, string(b))
	default:
		fmt.Fprintf(p.Err, "mortise version: -o %q: want json\n", *output)
		return 2
	}
	return 0
}
