// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ahead gives this process realtime priority (SCHED_FIFO; see sched(7)) until back is called. A client that measures a
// server usually has a machine of its own; here it shares the server's cores, and without the priority it would mostly
// measure how long the kernel lets the client itself wait. Threads that start meanwhile get the priority too. Without
// CAP_SYS_NICE, ahead returns an error, and the client measures with its normal priority.
func ahead() (back func() error, err error) {
	switch err := placed(unix.SchedAttr{Policy: unix.SCHED_FIFO, Priority: 10}); {
	case errors.Is(err, unix.EPERM):
		fmt.Fprintln(os.Stderr, "bench: the quiet client waits for a processor as others do: it takes root to let it go ahead")
		return func() error { return nil }, nil
	case err != nil:
		return nil, fmt.Errorf("go ahead of other processes: %w", err)
	}
	return func() error { return placed(unix.SchedAttr{Policy: unix.SCHED_NORMAL}) }, nil
}

// placed changes how all threads that this process has now are scheduled.
func placed(how unix.SchedAttr) error {
	how.Size = unix.SizeofSchedAttr
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetAttr(id, &how, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
