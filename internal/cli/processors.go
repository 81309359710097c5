// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"runtime"
)

// fewProcessors is up to how many a machine has the kernel share them among twice as many threads.
const fewProcessors = 4

// shareProcessors lets twice as many threads run Go code as there are processors, where those are few. The runtime has no priorities:
// with two threads, one that lists and one that collects garbage, a small request waits until either comes to its end. With
// four, the kernel lets a thread that had nothing to do run before those that had much. Who sets GOMAXPROCS, or gives the process a
// part of the machine, knows better.
func shareProcessors() {
	n := runtime.NumCPU()
	if os.Getenv("GOMAXPROCS") == "" && n <= fewProcessors && runtime.GOMAXPROCS(0) == n {
		runtime.GOMAXPROCS(2 * n)
	}
}
