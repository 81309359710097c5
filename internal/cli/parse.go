// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// parse parses a command's arguments. It reports done if the command ends here with the exit code: 0 after help, which goes to the standard
// output, 2 after an error, which it has printed.
func parse(p Program, f *pflag.FlagSet, command string, args []string) (code int, done bool) {
	f.SetOutput(p.Out)
	err := f.Parse(args)
	f.SetOutput(p.Err)
	switch {
	case err == nil:
		return 0, false
	case errors.Is(err, pflag.ErrHelp):
		return 0, true
	}
	return refuse(p, command, err), true
}

// parseFlags is like parse for a command that takes only flags, and prints its own help.
func parseFlags(p Program, f *pflag.FlagSet, args []string, help *helpFlag, printHelp func() int) (code int, done bool) {
	err := f.Parse(args)
	switch {
	case err != nil:
	case *help != "":
		return printHelp(), true
	case f.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", f.Arg(0))
	default:
		return 0, false
	}
	return refuse(p, f.Name(), err), true
}

// refuse prints the error in the arguments of a command, and returns its exit code.
func refuse(p Program, command string, err error) int {
	fmt.Fprintf(p.Err, "mortise %s: %v\n", command, err)
	return 2
}
