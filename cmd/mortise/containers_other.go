// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import (
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/internal/cli"
)

// addContainers returns nil: containers need Linux, so that nodes are simulated.
func addContainers(*cli.Program) embed.Containers { return nil }
