// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command launcher stands in for the program in a Debian package of TestPackage: it runs the one that the tests have built, so that the
// packages of two versions are small.
package main

import (
	"cmp"
	"fmt"
	"os"
	"syscall"
)

func main() {
	program := cmp.Or(os.Getenv("MORTISE_PROGRAM"), "/mortise-program")
	err := syscall.Exec(program, append([]string{"mortise"}, os.Args[1:]...), os.Environ())
	fmt.Fprintf(os.Stderr, "run %s: %v\n", program, err)
	os.Exit(1)
}
