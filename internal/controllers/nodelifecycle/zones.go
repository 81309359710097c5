// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// state is the state of a zone, by the number of its ready nodes.
type state string

const (
	initial state = "Initial"
	normal  state = "Normal"
	partial state = "PartialDisruption"
	full    state = "FullDisruption"
)

// node is the zones' record of a node.
type node struct {
	zone    string
	status  corev1.ConditionStatus // of Ready; "": never reported
	counted bool                   // it counts for its zone
	waiting bool                   // it waits for the taint that evicts its pods
	tainted bool                   // it has such a taint
}

// zones decide which failed nodes to taint, and when. If a few nodes fail, the controller evicts their pods, one node every ten seconds. If
// most of a zone fails, the network between the zone and the control plane is the more likely cause: then the controller empties a large
// zone slowly, and a small one not at all. If all zones fail, it taints no node and removes the taints again.
//
// Worked example, with the rates 0.1 and 0.01: in a zone of ten nodes, four fail. The controller taints one at once, one after ten seconds,
// and so on. Two more fail: six of ten are over 0.55 and the zone has fewer than fifty nodes, so the others keep their pods. The other zone
// fails too: the controller removes all taints. That zone recovers: the controller starts to taint the nodes that are still failed from the
// beginning.
//
// zones do no I/O and read no clock.
type zones struct {
	settings settings
	nodes    map[string]*node
	of       map[string]*zone
}

type zone struct {
	state                state
	ready, unready, size int // the nodes that count; all nodes
	queue                []string
	rate                 float32   // nodes per second; 0: none
	next                 time.Time // the earliest time for the next node
}

func newZones(s settings) *zones {
	return &zones{settings: s, nodes: map[string]*node{}, of: map[string]*zone{}}
}

func (z *zone) count(n *node, by int) {
	z.size += by
	switch {
	case !n.counted:
	case n.status == corev1.ConditionTrue:
		z.ready += by
	default:
		z.unready += by
	}
}

// observe records the state of a node. It reports whether that is new.
func (z *zones) observe(name string, now node) bool {
	was, known := z.nodes[name]
	if known && *was == now {
		return false
	}
	z.forget(name)
	at := z.of[now.zone]
	if at == nil {
		at = &zone{state: initial, rate: z.settings.rate}
		z.of[now.zone] = at
	}
	z.nodes[name] = &now
	at.count(&now, 1)
	if now.waiting {
		at.queue = append(at.queue, name)
		if known && was.waiting && was.zone == now.zone { // it keeps its place
			at.queue = at.queue[:len(at.queue)-1]
		}
	}
	if known && was.waiting && (!now.waiting || was.zone != now.zone) {
		z.of[was.zone].drop(name)
	}
	return true
}

func (z *zone) drop(name string) {
	z.queue = slices.DeleteFunc(z.queue, func(n string) bool { return n == name })
}

// forget removes a node from the counts, but not from the queue.
func (z *zones) forget(name string) {
	if n := z.nodes[name]; n != nil {
		z.of[n.zone].count(n, -1)
		delete(z.nodes, name)
	}
}

// remove removes a deleted node.
func (z *zones) remove(name string) {
	if n := z.nodes[name]; n != nil {
		z.of[n.zone].drop(name)
		z.forget(name)
	}
}

// judged returns a zone's state by its counts.
func (z *zones) judged(at *zone) state {
	switch {
	case at.ready == 0 && at.unready > 0:
		return full
	case at.unready > 2 && float32(at.unready)/float32(at.unready+at.ready) >= z.settings.unhealthy:
		return partial
	default:
		return normal
	}
}

// verdict is what the controller has to do.
type verdict struct {
	untaint []string // all tainted nodes: every zone has failed
	forgive bool     // every zone had failed before: silence in that time does not count
	taint   []string // the next nodes
	again   time.Time
}

// judge judges all zones together. Nodes in verdict.taint leave the queue.
func (z *zones) judge(now time.Time) verdict {
	var v verdict
	allAre, allWere := true, true
	next := map[string]state{}
	for _, name := range slices.Sorted(maps.Keys(z.of)) {
		at := z.of[name]
		if at.ready+at.unready == 0 {
			if at.size == 0 {
				delete(z.of, name)
			}
			continue // no nodes to judge by
		}
		next[name] = z.judged(at)
		allAre = allAre && next[name] == full
		allWere = allWere && at.state == full
	}
	switch {
	case len(next) == 0 || allAre && allWere:
	case allAre:
		for name, n := range z.nodes {
			if n.tainted {
				v.untaint = append(v.untaint, name)
			}
		}
		slices.Sort(v.untaint)
		for _, at := range z.of {
			at.state = full
			at.limit(0, now)
		}
	default:
		v.forgive = allWere
		for name, s := range next {
			at := z.of[name]
			if at.state == s && !allWere {
				continue
			}
			at.state = s
			switch {
			case s != partial:
				at.limit(z.settings.rate, now)
			case at.ready+at.unready > z.settings.large:
				at.limit(z.settings.secondary, now)
			default:
				at.limit(0, now)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(z.of)) {
		at := z.of[name]
		for len(at.queue) > 0 && at.rate > 0 {
			if now.Before(at.next) {
				if v.again.IsZero() || at.next.Before(v.again) {
					v.again = at.next
				}
				break
			}
			v.taint = append(v.taint, at.queue[0])
			at.queue = at.queue[1:]
			at.next = now.Add(at.interval())
		}
	}
	return v
}

// limit sets a zone's rate. A zone that had to wait waits the new interval.
func (z *zone) limit(rate float32, now time.Time) {
	if z.rate == rate {
		return
	}
	waited := z.rate <= 0 || now.Before(z.next)
	if z.rate = rate; waited && rate > 0 {
		z.next = now.Add(z.interval())
	}
}

// interval returns the time between two nodes.
func (z *zone) interval() time.Duration {
	return time.Duration(float64(time.Second) / float64(z.rate)).Round(time.Millisecond)
}

// retry requeues a node that the controller could not taint.
func (z *zones) retry(name string) {
	if n := z.nodes[name]; n != nil && n.waiting {
		at := z.of[n.zone]
		at.drop(name)
		at.queue = append(at.queue, name)
	}
}

// rejudge makes the next judgement repeat what it decides for all zones together.
func (z *zones) rejudge() {
	for _, at := range z.of {
		at.state = initial
	}
}

// zoneOf returns a node's zone by its region and zone labels, the deprecated ones first. Nodes without labels share one zone.
func zoneOf(labels map[string]string) string {
	first := func(old, now string) string {
		if v, ok := labels[old]; ok {
			return v
		}
		return labels[now]
	}
	zone := first(corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone)
	region := first(corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion)
	if region == "" && zone == "" {
		return ""
	}
	return region + ":\x00:" + zone // as upstream's metrics show it
}
