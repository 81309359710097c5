// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestApart never comes upon the process's first thread, which would not end.
func TestApart(t *testing.T) {
	var mu sync.Mutex
	ran, first := 0, 0
	var all sync.WaitGroup
	for range 2000 {
		all.Add(1)
		Apart(func() {
			defer all.Done()
			mu.Lock()
			defer mu.Unlock()
			ran++
			if unix.Gettid() == unix.Getpid() {
				first++
			}
		})
	}
	all.Wait()
	if ran != 2000 || first != 0 {
		t.Errorf("%d ran, %d of them on the first thread", ran, first)
	}
}
