// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import "time"

// Host is what the whole machine uses.
type Host struct {
	Booted                time.Time
	CPUNanoseconds        uint64 // used since boot, over all processors
	MemoryBytes           uint64
	MemoryWorkingSetBytes uint64
	MemoryAvailableBytes  uint64
	SwapBytes             uint64
	SwapAvailableBytes    uint64
	Threads, MostThreads  int64 // that run, and that may; 0: not known
}
