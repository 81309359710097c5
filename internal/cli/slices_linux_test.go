// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestShortSlices asks in a process of its own, for what is asked stays, and looks at all threads, those that began later among them.
func TestShortSlices(t *testing.T) {
	if os.Getenv("MORTISE_TEST_SLICES") == "" {
		c := exec.Command(os.Args[0], "-test.run=^TestShortSlices$", "-test.v")
		c.Env = append(os.Environ(), "MORTISE_TEST_SLICES=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	nice, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	honoured := nice.Runtime != 0 // kernels before 6.12 say nothing of slices
	askForShortSlices()
	var threads, begun sync.WaitGroup
	threads.Add(8)
	begun.Add(1)
	for range 8 {
		go func() {
			runtime.LockOSThread() // and so on a thread of its own
			threads.Done()
			begun.Wait()
		}()
	}
	threads.Wait()
	defer begun.Done()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(tasks) < 8 {
		t.Fatalf("%d threads", len(tasks))
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		how, err := unix.SchedGetAttr(id, 0)
		if err != nil {
			t.Fatal(err)
		}
		if want := uint64(slice); honoured && how.Runtime != want || how.Nice != nice.Nice || how.Policy != nice.Policy {
			t.Errorf("thread %d: %+v, want a slice of %d ns and the rest as it was: %+v", id, how, want, nice)
		}
	}
}
