// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// slice is how long one of our threads runs before the kernel lets another of its kind go first, where both want a processor: a tenth to a
// seventh of what kernels give on their own (0.7 to 1.4 ms for one to two processors, 2.8 from eight on). What a server does for a request
// takes about as long, and one that has just come should not wait for several.
const slice = 200 * time.Microsecond

// askForShortSlices asks the kernel for them, for all threads that there are and all that they will start. Kernels do it from Linux 6.12 on
// (sched_setattr(2) with sched_runtime, for SCHED_OTHER); others, and those that forbid it, leave everything as it is.
// What the process starts has short slices too.
func askForShortSlices() {
	asked := map[int]bool{}
	for more := true; more; { // a thread that was not asked yet may have started another meanwhile
		more = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return
		}
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil || asked[id] {
				continue
			}
			asked[id], more = true, true
			how, err := unix.SchedGetAttr(id, 0)
			if err != nil || how.Policy != unix.SCHED_NORMAL && how.Policy != unix.SCHED_BATCH {
				continue // it has exited, or the program that started us has set it up
			}
			how.Runtime = uint64(slice)
			_ = unix.SchedSetAttr(id, how, 0) // it stays as it is where that is forbidden
		}
	}
}
