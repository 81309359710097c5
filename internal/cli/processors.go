// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"runtime"
)

// fewProcessors is the maximum number of CPUs with which shareProcessors doubles the threads.
const fewProcessors = 4

// shareProcessors lets twice as many threads as CPUs run Go code on a machine with few CPUs. The Go scheduler has no priorities: with two
// threads, one with a list request and one in the garbage collector, a small request waits until one of them has finished. With four, the
// kernel prefers a thread that was idle to busy ones. It changes nothing if GOMAXPROCS is set, or if the process is limited to a part of
// the machine.
func shareProcessors() {
	n := runtime.NumCPU()
	if os.Getenv("GOMAXPROCS") == "" && n <= fewProcessors && runtime.GOMAXPROCS(0) == n {
		runtime.GOMAXPROCS(2 * n)
	}
}
