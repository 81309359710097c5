// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import "time"

// Host is the usage of the whole machine.
type Host struct {
	Booted                time.Time
	CPUNanoseconds        uint64 // since boot, over all CPUs
	MemoryBytes           uint64
	MemoryWorkingSetBytes uint64
	MemoryAvailableBytes  uint64
	SwapBytes             uint64
	SwapAvailableBytes    uint64
	Threads, MostThreads  int64 // number and maximum; 0: unknown
}
