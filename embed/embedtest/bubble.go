// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-dev/mortise/embed"
)

// Bubble runs f with a fork of a cluster in a bubble of testing/synctest, where time is in the test's hand: whenever everything in the
// bubble waits, the clock jumps to the next moment for which something waits. So TTLs, leases, schedules, grace periods and back-offs
// pass in no time.
//
//	embedtest.Bubble(t, prepared, func(t *testing.T, cluster *embed.Server) {
//		client := cluster.Client()
//		…                        // create a CronJob
//		embedtest.Advance(t, time.Hour) // an hour of its Jobs
//	})
//
// The clock begins at the real time. The fork has no port (see [embed.Server.ForkInProcess]). What the test itself starts in the bubble,
// such as controllers of its own, has to end before f returns, and must not wait for the network.
func Bubble(t *testing.T, from *embed.Server, f func(t *testing.T, cluster *embed.Server)) {
	t.Helper()
	now := time.Now().Round(0) // by the wall clock
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now)) // the clock of a bubble begins in the year 2000
		f(t, from.ForkInProcess(t))
	})
}

// Advance advances the clock of a bubble: it runs everything that is due before the clock has advanced by d, and settles.
func Advance(t testing.TB, d time.Duration) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
}

// Settle waits, in a bubble, until nothing more happens before the clock advances: no request is in progress, every informer has handled
// the newest revision, and the queue of every controller is empty, the test's own controllers included. Keys that come back after a
// back-off or at a time wait for the clock.
func Settle(t testing.TB) {
	t.Helper()
	synctest.Wait()
}
