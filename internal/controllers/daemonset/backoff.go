// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const (
	firstWait   = time.Second
	longestWait = 15 * time.Minute
)

// waits record when the controller last deleted a failed pod, for each set and node, and how long the next failed pod has to stay: a second
// at first, then twice as long each time. The back-off starts anew with a new generation of the set, and on a node that was well for long.
type waits struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	of    map[spot]wait
	swept time.Time
}

type spot struct {
	set        types.UID
	generation int64 // the generation in the set's status
	node       string
}

type wait struct {
	since time.Time
	long  time.Duration
}

func (w wait) expired(now time.Time) bool { return now.Sub(w.since) > 2*longestWait }

func newWaits(c clock.PassiveClock) *waits {
	return &waits{clock: c, of: map[spot]wait{}, swept: c.Now()}
}

func at(set *appsv1.DaemonSet, node string) spot {
	return spot{set.UID, set.Status.ObservedGeneration, node}
}

// left returns the rest of a wait.
func (w *waits) left(s spot) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, ok := w.of[s]
	if !ok || x.expired(w.clock.Now()) {
		return 0
	}
	return max(x.since.Add(x.long).Sub(w.clock.Now()), 0)
}

// again begins the next wait.
func (w *waits) again(s spot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.clock.Now()
	long := firstWait
	if x, ok := w.of[s]; ok && !x.expired(now) {
		long = min(2*x.long, longestWait)
	}
	w.of[s] = wait{now, long}
	if now.Sub(w.swept) > longestWait {
		w.swept = now
		for s, x := range w.of {
			if x.expired(now) {
				delete(w.of, s)
			}
		}
	}
}
