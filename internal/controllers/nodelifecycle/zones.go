// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// state is how a zone does, by how many of its nodes are ready.
type state string

const (
	initial state = "Initial"
	normal  state = "Normal"
	partial state = "PartialDisruption"
	full    state = "FullDisruption"
)

// node is what zones know of one.
type node struct {
	zone    string
	status  corev1.ConditionStatus // of Ready; empty: it has never said
	counted bool                   // it counts in the judgement of its zone
	waiting bool                   // it is to be tainted, which evicts its pods, when its zone's turn comes
	tainted bool                   // it has such a taint
}

// zones decide which nodes that are not ready are tainted, and when. A few nodes that fail are emptied, one every ten
// seconds. Where most of a zone fails it is more likely that something between us and them did: then a large zone is
// emptied slowly, and a small one not at all. Where all that there is fails nothing is done, and what has been is taken back.
//
// Worked example, with the rates 0.1 and 0.01: of a zone of ten, four fail. One is tainted at once, one after ten seconds,
// and so on. Two more fail: six of ten are over 0.55, the zone has fewer than fifty nodes, the rest is left alone. The other
// zone fails too: all taints go. It comes back: what is left failed is tainted again, from the beginning.
//
// It does no I/O and reads no clock.
type zones struct {
	settings settings
	nodes    map[string]*node
	of       map[string]*zone
}

type zone struct {
	state                state
	ready, unready, size int // nodes that count; all
	queue                []string
	rate                 float32   // nodes a second; 0: none
	next                 time.Time // the earliest for the next one
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

// observe takes in what a node is like now. It tells whether anything is new.
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

// forget takes a node out of the counts, not out of the queue.
func (z *zones) forget(name string) {
	if n := z.nodes[name]; n != nil {
		z.of[n.zone].count(n, -1)
		delete(z.nodes, name)
	}
}

// remove is for a node that is gone.
func (z *zones) remove(name string) {
	if n := z.nodes[name]; n != nil {
		z.of[n.zone].drop(name)
		z.forget(name)
	}
}

// judged is what a zone's numbers make it.
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

// verdict is what is to be done.
type verdict struct {
	untaint []string // all that have a taint: everything has failed
	forgive bool     // everything has failed before: what was not heard meanwhile does not count
	taint   []string // the next ones
	again   time.Time
}

// judge looks at all zones at once. What it says is to be tainted waits no more.
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
			continue // nothing to judge by
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

// limit sets a zone's rate. Who had to wait before waits the new time.
func (z *zone) limit(rate float32, now time.Time) {
	if z.rate == rate {
		return
	}
	waited := z.rate <= 0 || now.Before(z.next)
	if z.rate = rate; waited && rate > 0 {
		z.next = now.Add(z.interval())
	}
}

// interval is the time between two nodes.
func (z *zone) interval() time.Duration {
	return time.Duration(float64(time.Second) / float64(z.rate)).Round(time.Millisecond)
}

// retry puts a node back that could not be tainted.
func (z *zones) retry(name string) {
	if n := z.nodes[name]; n != nil && n.waiting {
		at := z.of[n.zone]
		at.drop(name)
		at.queue = append(at.queue, name)
	}
}

// rejudge has the next judgement say again what all zones together mean.
func (z *zones) rejudge() {
	for _, at := range z.of {
		at.state = initial
	}
}

// zoneOf names a node's zone, after the labels of clouds, the old ones first; all without are in one.
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
	return region + ":\x00:" + zone // as metrics show it upstream
}
