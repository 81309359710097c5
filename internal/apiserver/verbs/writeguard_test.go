// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWriteGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		aborted := 0
		g := writeGuard{abort: func() { aborted++ }}
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		for range 3 { // writes that are taken, and long pauses
			g.begin()
			pass(writeTimeout - time.Second)
			g.end()
			pass(time.Minute)
			g.begin()
			g.end()
			pass(time.Second)
		}
		if aborted != 0 {
			t.Fatal("a write was aborted that was taken in time")
		}
		g.begin()
		pass(writeTimeout - time.Second)
		if aborted != 0 {
			t.Error("a write was aborted too early")
		}
		pass(writeTimeout)
		if aborted != 1 {
			t.Errorf("a write that nobody took was aborted %d times", aborted)
		}
		g.end()
		g.begin()
		g.close()
		pass(time.Hour)
		if aborted != 1 {
			t.Error("a write was aborted after the end of the guard")
		}
	})
}
