// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cli

import (
	"context"
	"runtime/debug"
	"time"
)

// processStart returns the current time.
func processStart() time.Time { return time.Now() }

// askForShortSlices does nothing: only Linux has them.
func askForShortSlices() {}

// trimMemory releases free memory of the heap.
func trimMemory() error {
	debug.FreeOSMemory()
	return nil
}

// trimBinary does nothing: which pages of the binary are resident is unknown.
func trimBinary() error { return nil }

// mappedFiles returns 0: how much of the binary is resident is unknown.
func mappedFiles() uint64 { return 0 }

// space returns zeros: how much is free is unknown.
func space(string) (free, total uint64) { return 0, 0 }

// runMachine refuses: containers need Linux.
func runMachine(_ context.Context, p Program, _ []string) int { return fail(p, errNeedsLinux) }

// runReset refuses: there is nothing to remove.
func runReset(_ context.Context, p Program, _ []string) int { return fail(p, errNeedsLinux) }
