// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// parse parses a command's arguments. It reports done when the command ends here with the exit code: 0 after help, 2 after an error,
// which it has printed.
func parse(p Program, f *pflag.FlagSet, command string, args []string) (code int, done bool) {
	err := f.Parse(args)
	switch {
	case err == nil:
		return 0, false
	case errors.Is(err, pflag.ErrHelp):
		return 0, true
	}
	fmt.Fprintf(p.Err, "mortise %s: %v\n", command, err)
	return 2, true
}
