// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// fenceposts resolves maxSurge and maxUnavailable: percentages of the replicas, surge rounded up and unavailable down. If both are 0, one
// replica may be unavailable: otherwise the rollout could never proceed.
func fenceposts(d *appsv1.Deployment) (surge, unavailable int32) {
	r := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType || r == nil {
		return 0, 0
	}
	zero := intstr.FromInt32(0)
	s, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxSurge, zero), int(*d.Spec.Replicas), true)
	if err != nil {
		return 0, 0
	}
	u, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxUnavailable, zero), int(*d.Spec.Replicas), false)
	if err != nil {
		return 0, 0
	}
	if s == 0 && u == 0 {
		u = 1
	}
	return int32(s), int32(u)
}

func maxSurge(d *appsv1.Deployment) int32 {
	surge, _ := fenceposts(d)
	return surge
}

func maxUnavailable(d *appsv1.Deployment) int32 {
	_, unavailable := fenceposts(d)
	return min(unavailable, *d.Spec.Replicas)
}

// roll takes one step of a rolling update: it scales up if the surge allows it, else down if enough are available, else cleans up.
func (p *planner) roll() {
	p.syncRevision(true)
	if p.growNew() {
		return
	}
	if p.shrinkOld() {
		return
	}
	if complete(p.d, &p.d.Status) {
		p.cleanUp()
	}
}

func (p *planner) growNew() bool {
	wish := *p.d.Spec.Replicas
	switch have := count(p.new); {
	case have == wish:
		return false
	case have > wish:
		return p.resize(p.new, wish)
	}
	return p.resize(p.new, p.newSize(p.new))
}

// newSize returns how many replicas the new set may have by now.
func (p *planner) newSize(rs *appsv1.ReplicaSet) int32 {
	wish := *p.d.Spec.Replicas
	if p.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return wish
	}
	total := sum(p.old, count) + count(rs)
	var surge int
	if r := p.d.Spec.Strategy.RollingUpdate; r != nil && r.MaxSurge != nil {
		surge, _ = intstr.GetScaledValueFromIntOrPercent(r.MaxSurge, int(wish), true)
	}
	room := wish + int32(surge) - total
	if room <= 0 {
		return count(rs)
	}
	return count(rs) + min(room, wish-count(rs))
}

// shrinkOld removes old replicas as far as enough stay available: first the unavailable ones, which costs nothing, then as many available
// ones as exceed the minimum. It assumes that the new set's unavailable replicas never become available.
func (p *planner) shrinkOld() bool {
	old := active(p.old)
	if len(old) == 0 {
		return false
	}
	least := *p.d.Spec.Replicas - maxUnavailable(p.d)
	room := sum(p.all(), count) - least - (count(p.new) - available(p.new))
	if room <= 0 {
		return false
	}
	scaled := false
	slices.SortFunc(old, byAge)
	var gone int32
	for _, rs := range old {
		sick := count(rs) - available(rs)
		if sick < 0 {
			return false // its status does not show the last scale-down yet: removing more may be unsafe
		}
		if gone < room && sick != 0 {
			n := min(room-gone, sick)
			gone += n
			scaled = p.resize(rs, count(rs)-n) || scaled
		}
	}
	spare := sum(old, available) + available(p.new) - least
	for _, rs := range old {
		if n := min(count(rs), spare); n > 0 {
			spare -= n
			scaled = p.resize(rs, count(rs)-n) || scaled
		}
	}
	return scaled
}

// recreate stops all old pods before it starts new ones.
func (p *planner) recreate() {
	p.syncRevision(false)
	scaled := false
	for _, rs := range active(p.old) {
		scaled = p.resize(rs, 0) || scaled
	}
	if scaled || p.oldRunning() {
		return
	}
	if p.new == nil {
		p.syncRevision(true)
	}
	p.resize(p.new, *p.d.Spec.Replicas)
	if complete(p.d, &p.d.Status) {
		p.cleanUp()
	}
}

func (p *planner) oldRunning() bool {
	for _, rs := range p.old {
		if rs.Status.Replicas > 0 || p.running[rs.UID] > 0 {
			return true
		}
	}
	return false
}

// resize sets rs's size, and the annotations that reveal a later change of the deployment's own size. It reports whether the size changed.
func (p *planner) resize(rs *appsv1.ReplicaSet, size int32) bool {
	if count(rs) == size {
		return false
	}
	p.resizeAndNote(rs, size)
	return true
}

func (p *planner) resizeAndNote(rs *appsv1.ReplicaSet, size int32) {
	p.touch(rs)
	p.tell(rs, count(rs), size)
	rs.Spec.Replicas = &size
	noteSizes(rs, p.d)
}

// tell records an event for a resize of rs.
func (p *planner) tell(rs *appsv1.ReplicaSet, was, is int32) {
	direction := "up"
	switch {
	case was == is:
		return
	case was > is:
		direction = "down"
	}
	p.said[rs] = append(p.said[rs], fmt.Sprintf("Scaled %s replica set %s from %d to %d", direction, rs.Name, was, is))
}
