// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// slice is the time that one of our threads runs before the kernel prefers another thread that waits for the CPU: a tenth to a seventh of
// kernels' defaults (0.7 to 1.4 ms for one to two CPUs, 2.8 from eight on). A server needs about as long for a request, and a new request
// should not wait for several others.
const slice = 200 * time.Microsecond

// askForShortSlices sets the time slice of all threads, and of all threads that they will start. Kernels support it from Linux 6.12 on
// (sched_setattr(2) with sched_runtime, for SCHED_OTHER); on others, or without the permission, nothing changes. Child processes inherit
// short slices.
func askForShortSlices() {
	asked := map[int]bool{}
	for more := true; more; { // a thread that has no short slice yet may have started another meanwhile
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
				continue // it has exited, or the program that started us has configured it
			}
			how.Runtime = uint64(slice)
			_ = unix.SchedSetAttr(id, how, 0) // without the permission it stays as it is
		}
	}
}
