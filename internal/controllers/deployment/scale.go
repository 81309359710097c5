// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"math"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
)

const unlimited = math.MaxInt32

// scaledMeanwhile reports whether the deployment's size changed since its replica sets were last written. The controller then corrects the
// sizes first, and the rollout continues from there.
func (p *planner) scaledMeanwhile() bool {
	for _, rs := range active(p.all()) {
		if desired, ok := annotatedSize(rs, annotationDesired); ok && desired != *p.d.Spec.Replicas {
			return true
		}
	}
	return false
}

// scale distributes the deployment's size over its replica sets. If only one is up, it gets all. If the newest is fully available, the
// others get none. Otherwise a rollout is in progress, and each gets its share: a deployment of 10 with maxSurge 3 that has 8 old + 5 new
// replicas and is scaled to 20 may have 23 instead of 13; old becomes 14 (8·23/13), new 9 (5·23/13), and the rounding remainder goes to the
// largest.
func (p *planner) scale() {
	wish := *p.d.Spec.Replicas
	all := p.all()
	up := active(all)
	switch {
	case len(all) == 0:
		return
	case len(up) <= 1:
		one := p.new
		if len(up) == 1 {
			one = up[0]
		} else if one == nil {
			one = slices.MaxFunc(p.old, byAge)
		}
		p.resize(one, wish)
		return
	case p.saturated():
		for _, rs := range active(p.old) {
			p.resize(rs, 0)
		}
		return
	case p.d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType:
		return
	}
	var allowed int32
	if wish > 0 {
		allowed = wish + maxSurge(p.d)
	}
	add := allowed - sum(up, count)
	slices.SortFunc(up, func(a, b *appsv1.ReplicaSet) int {
		bySize := cmp.Compare(count(b), count(a))
		if add > 0 {
			return cmp.Or(bySize, b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
		}
		return cmp.Or(bySize, byAge(a, b))
	})
	sizes := make([]int32, len(up))
	var added int32
	for i, rs := range up {
		part := p.proportion(rs, add, added)
		sizes[i] = count(rs) + part
		added += part
	}
	if add != 0 {
		sizes[0] = max(sizes[0]+add-added, 0)
	}
	for i, rs := range up {
		p.resizeAndNote(rs, sizes[i])
	}
}

// proportion returns rs's share of add, of which added is distributed already.
func (p *planner) proportion(rs *appsv1.ReplicaSet, add, added int32) int32 {
	if count(rs) == 0 || add == 0 || add == added {
		return 0
	}
	if *p.d.Spec.Replicas == 0 {
		return max(-count(rs), add-added)
	}
	before, ok := annotatedSize(rs, annotationMax)
	if !ok || before == 0 {
		if before = p.d.Status.Replicas; before == 0 {
			return 0
		}
	}
	size := float64(count(rs)*(*p.d.Spec.Replicas+maxSurge(p.d))) / float64(before)
	part := int32(math.Round(size)) - count(rs)
	if add > 0 {
		return min(part, add-added)
	}
	return max(part, add-added)
}

// saturated reports whether the new replica set has all replicas, available.
func (p *planner) saturated() bool {
	if p.new == nil {
		return false
	}
	wish := *p.d.Spec.Replicas
	desired, err := strconv.Atoi(p.new.Annotations[annotationDesired])
	return err == nil && int32(desired) == wish && count(p.new) == wish && available(p.new) == wish
}

func annotatedSize(rs *appsv1.ReplicaSet, key string) (int32, bool) {
	n, err := strconv.ParseUint(rs.Annotations[key], 10, 31)
	return int32(n), err == nil
}

// noteSizes annotates the replica set with the deployment's size and its maximum size.
func noteSizes(rs *appsv1.ReplicaSet, d *appsv1.Deployment) {
	if rs.Annotations == nil {
		rs.Annotations = map[string]string{}
	}
	rs.Annotations[annotationDesired] = strconv.Itoa(int(*d.Spec.Replicas))
	rs.Annotations[annotationMax] = strconv.Itoa(int(*d.Spec.Replicas + maxSurge(d)))
}
