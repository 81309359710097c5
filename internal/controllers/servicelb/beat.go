// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
)

// A node that announces addresses that another node could take over renews its Lease every second. Silence makes its addresses move.
const (
	quick   = 2 * time.Second // between two renewals of such a node, at most
	silence = 4 * time.Second
)

// beat is what the controller heard of a node.
type beat struct {
	last   time.Time
	quick  bool // the node renews its Lease every second
	silent bool // it has stopped
}

// next returns the state after a renewal.
func (b beat) next(at time.Time) beat {
	gap := at.Sub(b.last)
	return beat{last: at, quick: gap <= quick || b.quick && gap <= silence}
}

// check returns the state at a time, and when to check again; 0: not before the next renewal.
func (b beat) check(at time.Time) (beat, time.Duration) {
	if !b.quick || b.silent {
		return b, 0
	}
	if left := b.last.Add(silence).Sub(at); left > 0 {
		return b, left
	}
	b.silent = true
	return b, 0
}

func (c *controller) renewed(before, lease *coordinationv1.Lease) {
	if before.Spec.RenewTime == nil || !before.Spec.RenewTime.Equal(lease.Spec.RenewTime) {
		c.hear(lease)
	}
}

// hear notes the renewal of a node's Lease.
func (c *controller) hear(lease *coordinationv1.Lease) {
	if lease.Namespace != corev1.NamespaceNodeLease || c.pool.empty() {
		return
	}
	c.mu.Lock()
	was := c.beats[lease.Name]
	is := was.next(c.clock.Now())
	c.beats[lease.Name] = is
	if was.silent {
		c.current = nil
	}
	c.mu.Unlock()
	if is.quick && !was.quick {
		c.queue.AddAfter(key{node: lease.Name}, silence)
	}
	if was.silent {
		c.enqueueAll()
	}
}

// listen checks whether a node that announces addresses still does.
func (c *controller) listen(node string) {
	c.mu.Lock()
	was, has := c.beats[node]
	is, again := was.check(c.clock.Now())
	if has {
		c.beats[node], c.current = is, nil
	}
	c.mu.Unlock()
	switch {
	case !has:
	case again > 0:
		c.queue.AddAfter(key{node: node}, again)
	case is.silent && !was.silent:
		c.enqueueAll()
	}
}
