// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

const burst = 250

// observed is all that a decision rests on; nothing in it is changed.
type observed struct {
	set     *appsv1.DaemonSet
	hash    string // of the set's template
	nodes   []*corev1.Node
	pods    []*corev1.Pod // those that the set controls
	settled bool
	now     time.Time
}

// decision is what follows.
type decision struct {
	create []string // node names
	delete []*corev1.Pod
	events []event
	status appsv1.DaemonSetStatus
	again  time.Duration
}

type event struct{ level, reason, message string }

// place is one node as the set sees it.
type place struct {
	node      *corev1.Node
	run, stay bool          // should a pod run there; may one that does
	old, new  []*corev1.Pod // active pods, by template
}

// tolerations are the template's and those that every daemon pod has: nodes that are in trouble need their daemons.
func tolerations(spec *corev1.PodSpec) []corev1.Toleration {
	all := slices.Clone(spec.Tolerations)
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		for i := range all {
			if all[i].MatchToleration(&t) {
				return
			}
		}
		all = append(all, t)
	}
	add(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	add(corev1.TaintNodeDiskPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeMemoryPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodePIDPressure, corev1.TaintEffectNoSchedule)
	add(corev1.TaintNodeUnschedulable, corev1.TaintEffectNoSchedule)
	if spec.HostNetwork {
		add(corev1.TaintNodeNetworkUnavailable, corev1.TaintEffectNoSchedule)
	}
	return all
}

// fits tells whether a pod of the set should run on node, and whether one that runs there may stay.
func fits(set *appsv1.DaemonSet, tolerated []corev1.Toleration, node *corev1.Node) (run, stay bool) {
	spec := &set.Spec.Template.Spec
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return false, false
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}).Match(node)
	if err != nil || !match {
		return false, false
	}
	untolerated := func(effects ...corev1.TaintEffect) bool {
		_, found := schedulingcorev1.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, tolerated,
			func(t *corev1.Taint) bool { return slices.Contains(effects, t.Effect) }, false)
		return found
	}
	if untolerated(corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute) {
		return false, !untolerated(corev1.TaintEffectNoExecute)
	}
	return true, true
}

// target is the node that a pod runs on, or is made for.
func target(pod *corev1.Pod) string {
	if pod.Spec.NodeName != "" || pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return pod.Spec.NodeName
	}
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil {
		return ""
	}
	for _, term := range required.NodeSelectorTerms {
		for _, f := range term.MatchFields {
			if f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
				return f.Values[0]
			}
		}
	}
	return ""
}

func decide(in observed) decision {
	var d decision
	places := map[string]*place{}
	tolerated := tolerations(&in.set.Spec.Template.Spec)
	for _, node := range in.nodes {
		p := &place{node: node}
		p.run, p.stay = fits(in.set, tolerated, node)
		places[node.Name] = p
	}
	for _, pod := range in.pods {
		p := places[target(pod)]
		switch {
		case pod.DeletionTimestamp != nil:
		case p == nil:
			d.delete = append(d.delete, pod) // its node is gone, or it was made for none
		case pod.Status.Phase == corev1.PodFailed:
			d.delete = append(d.delete, pod)
			d.events = append(d.events, event{corev1.EventTypeWarning, "FailedDaemonPod", fmt.Sprintf("Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, p.node.Name)})
		case pod.Status.Phase == corev1.PodSucceeded:
			d.delete = append(d.delete, pod)
			d.events = append(d.events, event{corev1.EventTypeNormal, "SucceededDaemonPod", fmt.Sprintf("Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, p.node.Name)})
		case pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == in.hash:
			p.new = append(p.new, pod)
		default:
			p.old = append(p.old, pod)
		}
	}
	names := make([]string, 0, len(places))
	for name := range places {
		names = append(names, name)
	}
	slices.Sort(names)
	ordered := make([]*place, len(names))
	for i, name := range names {
		ordered[i] = places[name]
	}
	d.status = in.count(ordered)
	if d.status.NumberReady != d.status.NumberAvailable {
		d.again = max(workload.NextAvailable(in.pods, in.set.Spec.MinReadySeconds, in.now), 0)
	}
	if !in.settled || in.set.DeletionTimestamp != nil {
		d.delete, d.events = nil, nil
		return d
	}
	d.manage(ordered)
	if len(d.create) == 0 && len(d.delete) == 0 && in.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		d.roll(in, ordered)
	}
	d.create, d.delete = d.create[:min(len(d.create), burst)], d.delete[:min(len(d.delete), burst)]
	return d
}

// manage sees to it that where a pod should run there is one, and where none may there is none.
func (d *decision) manage(places []*place) {
	for _, p := range places {
		pods := slices.Concat(p.new, p.old)
		switch {
		case p.run && len(pods) == 0:
			if !slices.ContainsFunc(d.delete, func(pod *corev1.Pod) bool { return target(pod) == p.node.Name }) {
				d.create = append(d.create, p.node.Name)
			}
		case !p.stay:
			d.delete = append(d.delete, pods...)
		default:
			// One of each template may be there, while the new one takes over from the old.
			d.delete = append(d.delete, surplus(p.new)...)
			d.delete = append(d.delete, surplus(p.old)...)
		}
	}
}

// surplus are all pods but the oldest.
func surplus(pods []*corev1.Pod) []*corev1.Pod {
	if len(pods) < 2 {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(pods), func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return sorted[1:]
}

// roll replaces old pods. Without surge, old ones are deleted, first those that are not available, then as many as may be
// missing; the next sync makes the new. With surge, new ones are made beside the old, which go when they are available.
func (d *decision) roll(in observed, places []*place) {
	surge, unavailable := in.limits()
	now, seconds := in.now, in.set.Spec.MinReadySeconds
	up := func(pods []*corev1.Pod) bool {
		return len(pods) > 0 && func() bool { ok, _ := workload.Available(pods[0], seconds, now); return ok }()
	}
	missing, beside := 0, 0
	for _, p := range places {
		if !p.run {
			continue
		}
		if !up(p.new) && !up(p.old) {
			missing++
		}
		if len(p.new) > 0 && len(p.old) > 0 {
			beside++
		}
	}
	var healthy []*place
	for _, p := range places {
		if !p.run || len(p.old) == 0 {
			continue
		}
		switch {
		case len(p.new) > 0:
			if up(p.new) || !up(p.old) {
				d.delete = append(d.delete, p.old...)
			}
		case !up(p.old) && surge == 0:
			d.delete = append(d.delete, p.old...) // it serves nobody; its going makes nothing worse
		case !up(p.old):
			d.create = append(d.create, p.node.Name)
		default:
			healthy = append(healthy, p)
		}
	}
	for _, p := range healthy {
		switch {
		case surge > 0 && beside < surge:
			d.create = append(d.create, p.node.Name)
			beside++
		case surge == 0 && missing < unavailable:
			d.delete = append(d.delete, p.old...)
			missing++
		}
	}
}

// limits resolves maxSurge and maxUnavailable, both rounded up.
func (in observed) limits() (surge, unavailable int) {
	desired := 0
	tolerated := tolerations(&in.set.Spec.Template.Spec)
	for _, node := range in.nodes {
		if run, _ := fits(in.set, tolerated, node); run {
			desired++
		}
	}
	r := in.set.Spec.UpdateStrategy.RollingUpdate
	if r == nil {
		return 0, 1
	}
	zero, one := intstr.FromInt32(0), intstr.FromInt32(1)
	surge, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxSurge, zero), desired, true)
	if err != nil {
		return 0, 1
	}
	unavailable, err = intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxUnavailable, one), desired, true)
	if err != nil {
		return 0, 1
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// count makes the status.
func (in observed) count(places []*place) appsv1.DaemonSetStatus {
	s := appsv1.DaemonSetStatus{
		ObservedGeneration: in.set.Generation, CollisionCount: in.set.Status.CollisionCount, Conditions: in.set.Status.Conditions,
	}
	for _, p := range places {
		pods := slices.Concat(p.new, p.old)
		if !p.run {
			if len(pods) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(pods) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		if slices.ContainsFunc(pods, workload.Ready) {
			s.NumberReady++
		}
		if slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			ok, _ := workload.Available(pod, in.set.Spec.MinReadySeconds, in.now)
			return ok
		}) {
			s.NumberAvailable++
		}
		if len(p.new) > 0 {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}
