// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
)

// measured is what metrics count.
type measured struct {
	*queue.Queue
	*cache.Cache
}

// oneIn is of how many attempts one has its plug-ins measured one by one.
const oneIn = 10

// sample has plug-ins be measured one by one in some attempts.
func (a *attempt) sample() {
	if s, ok := a.state.(*profile.CycleState); ok && a.options.Metrics != nil && a.cycle%oneIn == 1 {
		s.Sample()
	}
}

// measure books how the attempt ended.
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
