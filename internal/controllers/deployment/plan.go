// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"cmp"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
)

// observed is the complete input of a decision. The objects are shared and must not be changed.
type observed struct {
	deployment *appsv1.Deployment
	sets       []*appsv1.ReplicaSet // the replica sets that the deployment controls
	running    map[types.UID]int    // unfinished pods by replica set; only Recreate needs them
	now        time.Time
}

// decision is what the controller does next.
type decision struct {
	writes  []write
	deletes []*appsv1.ReplicaSet
	spec    *appsv1.Deployment // update the deployment to this: a rollback
	status  *appsv1.Deployment // update status and annotations to these
	events  []event
	again   time.Duration // requeue after that; 0: wait for an event
}

type write struct {
	set    *appsv1.ReplicaSet
	create bool
	events []string // of reason ScalingReplicaSet, when the write is done
}

type event struct{ level, reason, message string }

// planner is a decision in progress: private copies of all objects, changed step by step.
type planner struct {
	observed
	d       *appsv1.Deployment
	new     *appsv1.ReplicaSet   // has the deployment's template; nil when there is none yet
	old     []*appsv1.ReplicaSet // the others, by age
	before  map[*appsv1.ReplicaSet]*appsv1.ReplicaSet
	touched []*appsv1.ReplicaSet            // in the order in which to write them
	said    map[*appsv1.ReplicaSet][]string // the messages of each one's resizes, one or two
	out     decision
}

func decide(in observed) decision {
	p := &planner{observed: in, d: in.deployment.DeepCopy(), before: map[*appsv1.ReplicaSet]*appsv1.ReplicaSet{},
		said: map[*appsv1.ReplicaSet][]string{}}
	sets := slices.Clone(in.sets)
	slices.SortFunc(sets, byAge)
	for _, shared := range sets {
		rs := shared.DeepCopy()
		p.before[rs] = shared
		if p.new == nil && sameTemplate(&rs.Spec.Template, &p.d.Spec.Template) {
			p.new = rs
		} else {
			p.old = append(p.old, rs)
		}
	}
	p.decide()
	p.collect()
	return p.out
}

func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// decide distinguishes the cases.
func (p *planner) decide() {
	if p.d.DeletionTimestamp != nil {
		p.syncRevision(false)
		p.settleStatus()
		return
	}
	p.notePause()
	switch revision, rollback := rollbackTo(p.d); {
	case p.d.Spec.Paused:
		p.syncRevision(false)
		p.scale()
		if !rollback {
			p.cleanUp()
		}
		p.settleStatus()
	case rollback:
		p.syncRevision(true)
		p.rollBack(revision)
	case p.scaledMeanwhile():
		p.syncRevision(false)
		p.scale()
		p.settleStatus()
	case p.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		p.recreate()
		p.rolloutStatus()
	default:
		p.roll()
		p.rolloutStatus()
	}
}

// collect turns the changed copies into writes.
func (p *planner) collect() {
	for _, rs := range p.touched {
		before := p.before[rs]
		if create := before == nil; create || !equality.Semantic.DeepEqual(before, rs) {
			p.out.writes = append(p.out.writes, write{set: rs, create: create, events: p.said[rs]})
		}
	}
	if p.out.spec != nil {
		return // the update requeues the deployment; a status written beside it would only conflict
	}
	if !equality.Semantic.DeepEqual(p.deployment.Status, p.d.Status) || !maps.Equal(p.deployment.Annotations, p.d.Annotations) {
		p.out.status = p.d
	}
}

// touch records that rs may have changed.
func (p *planner) touch(rs *appsv1.ReplicaSet) {
	if !slices.Contains(p.touched, rs) {
		p.touched = append(p.touched, rs)
	}
}

// all returns the old replica sets and the new one, if there is one.
func (p *planner) all() []*appsv1.ReplicaSet {
	all := slices.Clone(p.old)
	if p.new != nil {
		all = append(all, p.new)
	}
	return all
}

// count returns the number of replicas in rs's spec.
func count(rs *appsv1.ReplicaSet) int32 {
	if rs == nil || rs.Spec.Replicas == nil {
		return 0
	}
	return *rs.Spec.Replicas
}

func active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	var found []*appsv1.ReplicaSet
	for _, rs := range sets {
		if count(rs) > 0 {
			found = append(found, rs)
		}
	}
	return found
}

func sum(sets []*appsv1.ReplicaSet, of func(*appsv1.ReplicaSet) int32) (n int32) {
	for _, rs := range sets {
		n += of(rs)
	}
	return n
}

func available(rs *appsv1.ReplicaSet) int32 { return rs.Status.AvailableReplicas }

// cleanUp deletes the oldest replica sets over the history limit, of those without replicas.
func (p *planner) cleanUp() {
	limit := p.d.Spec.RevisionHistoryLimit
	if limit == nil || *limit == unlimited {
		return
	}
	var alive []*appsv1.ReplicaSet
	for _, rs := range p.old {
		if rs.DeletionTimestamp == nil {
			alive = append(alive, rs)
		}
	}
	slices.SortFunc(alive, func(a, b *appsv1.ReplicaSet) int { return cmp.Or(cmp.Compare(revision(a), revision(b)), byAge(a, b)) })
	for i := range len(alive) - int(*limit) {
		rs := alive[i]
		if rs.Status.Replicas == 0 && count(rs) == 0 && rs.Generation <= rs.Status.ObservedGeneration {
			p.out.deletes = append(p.out.deletes, rs)
		}
	}
}

// notePause keeps the Progressing condition from running into its deadline while the deployment is paused.
func (p *planner) notePause() {
	if !hasDeadline(p.d) {
		return
	}
	c := condition(&p.d.Status, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == reasonTimedOut {
		return
	}
	noted := c != nil && c.Reason == reasonPaused
	switch {
	case p.d.Spec.Paused && !noted:
		setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused", p.now)
	case !p.d.Spec.Paused && noted:
		setCondition(&p.d.Status, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed", p.now)
	}
}
