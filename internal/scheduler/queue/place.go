// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/mortise-dev/mortise/extension/trace"
)

// Position is a pod's place in the queue: Where is a place of package trace, PlaceTried for a pod in flight, and empty for a pod that is
// not in the queue.
type Position struct {
	Where        string
	Since, Until time.Time
	Plugins      []string // that rejected or gate the pod
	Attempts     int
	Nominated    string // the node that it is nominated to
}

// Position returns the position of a pod.
func (q *Queue) Position(uid types.UID) (p Position) {
	p.Nominated = q.Nominated(uid)
	q.mu.Lock()
	defer q.mu.Unlock()
	item := q.items[string(uid)]
	if item == nil {
		if _, flying := q.inFlight[string(uid)]; flying {
			p.Where = trace.PlaceTried
		}
		return p
	}
	p.Since, p.Attempts = item.added, item.attempts
	switch item.subqueue {
	case active:
		p.Where = trace.PlaceActive
	case backoff:
		p.Where, p.Until = trace.PlaceBackoff, item.ready
	case errorBackoff:
		p.Where, p.Until = trace.PlaceErrorBackoff, item.ready
	case waiting:
		if p.Where, p.Plugins = trace.PlaceGated, []string{item.gate}; item.gate == "" {
			p.Where, p.Until = trace.PlaceUnschedulable, item.added.Add(q.options.MaxWait)
			p.Plugins = sets.List(item.UnschedulablePlugins.Union(item.PendingPlugins))
		}
	case none:
	}
	return p
}

// Nominated returns the node that a pod is nominated to, or "".
func (n *nominator) Nominated(uid types.UID) string {
	if !n.AnyNominated() {
		return ""
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.nodeOf[uid]
}
