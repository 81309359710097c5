// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/mortise-dev/mortise/extension/trace"
)

// Position says where in the queue a pod is: Where is one of trace's places, PlaceTried for a pod in flight, and empty for a pod that the
// queue does not have.
type Position struct {
	Where        string
	Since, Until time.Time
	Plugins      []string // that rejected the pod, or gate it
	Attempts     int
	Nominated    string // the node that it is to come to
}

// Position finds a pod.
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

// Nominated is the node that a pod is nominated to, if it is.
func (n *nominator) Nominated(uid types.UID) string {
	if !n.AnyNominated() {
		return ""
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.nodeOf[uid]
}
