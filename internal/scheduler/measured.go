// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
)

// measured is what the scheduler's metrics read.
type measured struct {
	*queue.Queue
	*cache.Cache
}

// oneIn is the sampling rate: each plug-in is measured in one of so many attempts.
const oneIn = 10

// sample decides whether the attempt measures each plug-in.
func (a *attempt) sample() {
	if s, ok := a.state.(*profile.CycleState); ok && a.options.Metrics != nil && a.cycle%oneIn == 1 {
		s.Sample()
	}
}

// measure records the result of the attempt.
func (a *attempt) measure(r metrics.Result) {
	meter := a.profile.Meter()
	if meter == nil || a.began.IsZero() {
		return
	}
	now := a.options.Clock.Now()
	meter.Attempted(r, now.Sub(a.began))
	if r != metrics.Scheduled {
		return
	}
	if first := a.item.GetInitialAttemptTimestamp(); first != nil {
		meter.Bound(a.item.GetAttempts(), now.Sub(*first))
	}
}
