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

// ahead puts this process before all others (SCHED_FIFO; see sched(7)) until it is told to go back. A client that measures
// how long a server takes has a machine of its own in life; here it shares the server's cores, and without this what is
// measured is mostly how long the kernel lets the client itself wait. Threads that begin meanwhile are ahead too. Who may not
// (it takes CAP_SYS_NICE) measures where he is, and is told so.
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
