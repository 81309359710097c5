// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	schedulingcorev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

const burst = 250

// observed is the complete input of a decision; decide does not change it.
type observed struct {
	set     *appsv1.DaemonSet
	hash    string // of the set's template
	nodes   []*corev1.Node
	pods    []*corev1.Pod // the pods that the set controls
	settled bool
	now     time.Time
	// wait returns how long a failed pod on a node has to stay: the controller replaces pods that fail repeatedly ever more slowly.
	wait func(node string) time.Duration
}

// decision is what the controller does next.
type decision struct {
	create []string // node names
	delete []*corev1.Pod
	failed []string // nodes whose failed pod is deleted
	events []event
	status appsv1.DaemonSetStatus
	again  time.Duration // requeue after that; 0: wait for an event
}

func (d *decision) lookAgain(after time.Duration) {
	if after > 0 && (d.again == 0 || after < d.again) {
		d.again = after
	}
}

type event struct{ level, reason, message string }

// nodePods is one node and the set's pods there.
type nodePods struct {
	name      string
	gone      bool          // the node does not exist
	run, stay bool          // a pod should run there; a running pod may stay
	pods      []*corev1.Pod // on the node, or made for it; terminating pods included
}

// tolerations returns the template's tolerations and those of every daemon pod: nodes in trouble need their daemons.
func tolerations(spec *corev1.PodSpec) []corev1.Toleration {
	all := slices.Clone(spec.Tolerations)
	add := func(key string, effect corev1.TaintEffect) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: effect}
		for i := range all {
			if all[i].MatchToleration(&t) {
				all[i] = t // for ever, whatever tolerationSeconds the template sets
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

// fits reports whether a pod of the set should run on node, and whether a running one may stay.
func fits(set *appsv1.DaemonSet, tolerated []corev1.Toleration, node *corev1.Node) (run, stay bool) {
	spec := &set.Spec.Template.Spec
	if spec.NodeName != "" && spec.NodeName != node.Name {
		return false, false
	}
	match, err := nodeaffinity.GetRequiredNodeAffinity(
		&corev1.Pod{Spec: corev1.PodSpec{NodeSelector: spec.NodeSelector, Affinity: spec.Affinity}}).Match(node)
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

// target returns the node that a pod runs on, or is made for.
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
	nodes := in.nodePods()
	d.status = in.count(nodes)
	if d.status.NumberReady != d.status.NumberAvailable {
		d.lookAgain(workload.NextAvailable(in.pods, in.set.Spec.MinReadySeconds, in.now))
	}
	if !in.settled {
		return d
	}
	for _, p := range nodes {
		d.manage(in, p)
	}
	if len(d.create) == 0 && len(d.delete) == 0 && in.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		d.roll(in, nodes)
	}
	d.create, d.delete = d.create[:min(len(d.create), burst)], d.delete[:min(len(d.delete), burst)]
	return d
}

// nodePods returns all nodes, and the deleted nodes that pods were made for, by name.
func (in observed) nodePods() []*nodePods {
	byName := map[string]*nodePods{}
	tolerated := tolerations(&in.set.Spec.Template.Spec)
	for _, node := range in.nodes {
		p := &nodePods{name: node.Name}
		p.run, p.stay = fits(in.set, tolerated, node)
		byName[node.Name] = p
	}
	for _, pod := range in.pods {
		name := target(pod)
		if name == "" || pod.DeletionTimestamp != nil && workload.Finished(pod) {
			continue
		}
		p := byName[name]
		if p == nil {
			p = &nodePods{name: name, gone: true}
			byName[name] = p
		}
		p.pods = append(p.pods, pod)
	}
	nodes := slices.SortedFunc(maps.Values(byName), func(a, b *nodePods) int { return cmp.Compare(a.name, b.name) })
	for _, p := range nodes {
		slices.SortFunc(p.pods, eldest)
	}
	return nodes
}

// eldest orders bound pods before others, and older pods before younger.
func eldest(a, b *corev1.Pod) int {
	if bound := a.Spec.NodeName != ""; bound != (b.Spec.NodeName != "") {
		if bound {
			return -1
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// updated reports whether a pod has the set's current template.
func (in observed) updated(pod *corev1.Pod) bool {
	if in.hash != "" && pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == in.hash {
		return true
	}
	g := generation(in.set)
	return g != "" && pod.Labels[generationLabel] == g
}

func (in observed) available(pod *corev1.Pod) bool {
	ok, _ := workload.Available(pod, in.set.Spec.MinReadySeconds, in.now)
	return ok
}

// manage ensures that a pod exists where one should run, and none where none may. Unless the set may surge, it creates the next pod only
// when the terminating one is gone.
func (d *decision) manage(in observed, p *nodePods) {
	switch {
	case p.gone:
		for _, pod := range p.pods {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				d.delete = append(d.delete, pod) // never bound, so no kubelet deletes it
			}
		}
	case p.run && len(p.pods) == 0:
		d.create = append(d.create, p.name)
	case p.stay:
		d.keep(in, p)
	default:
		for _, pod := range p.pods {
			if pod.DeletionTimestamp == nil {
				d.delete = append(d.delete, pod)
			}
		}
	}
}

// keep ensures that one pod runs on the node: it deletes finished pods and all but the eldest; with surge, all but the eldest of each
// template, until the one of the newest template can take over.
func (d *decision) keep(in observed, p *nodePods) {
	var running []*corev1.Pod
	for _, pod := range p.pods {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if wait := in.wait(p.name); wait > 0 || slices.Contains(d.failed, p.name) {
				d.lookAgain(max(wait, time.Second))
				continue
			}
			d.failed = append(d.failed, p.name)
			d.delete = append(d.delete, pod)
			d.events = append(d.events, event{corev1.EventTypeWarning, "FailedDaemonPod",
				fmt.Sprintf("Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name, p.name)})
		case pod.Status.Phase == corev1.PodSucceeded:
			d.delete = append(d.delete, pod)
			d.events = append(d.events, event{corev1.EventTypeNormal, "SucceededDaemonPod",
				fmt.Sprintf("Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace, pod.Name, p.name)})
		default:
			running = append(running, pod)
		}
	}
	if surge, _ := in.limits(1); surge == 0 {
		if len(running) > 1 {
			d.delete = append(d.delete, running[1:]...)
		}
		return
	}
	if len(running) == 0 && p.run {
		d.create = append(d.create, p.name)
	}
	var current, former *corev1.Pod
	for _, pod := range running {
		switch isNew := pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == in.hash; {
		case isNew && current == nil:
			current = pod
		case !isNew && former == nil:
			former = pod
		default:
			d.delete = append(d.delete, pod)
		}
	}
	if current != nil && former != nil && (!podconditions.IsReady(former) || in.available(current)) {
		d.delete = append(d.delete, former)
	}
}

// pair returns a node's pods that are not terminating: of the newest template, and of an older one. ok is false if there are more.
func (in observed) pair(p *nodePods) (current, former *corev1.Pod, ok bool) {
	for _, pod := range p.pods {
		switch isNew := in.updated(pod); {
		case pod.DeletionTimestamp != nil:
		case isNew && current == nil:
			current = pod
		case !isNew && former == nil:
			former = pod
		default:
			return nil, nil, false
		}
	}
	return current, former, true
}

// roll replaces old pods. Without surge, it first deletes old pods that are not available, then as many as may be unavailable; a later sync
// creates the new pods. With surge, it creates new pods beside the old, and deletes an old one when its new one is available.
func (d *decision) roll(in observed, nodes []*nodePods) {
	desired := 0
	for _, p := range nodes {
		if p.run {
			desired++
		}
	}
	surge, unavailable := in.limits(desired)
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(p *nodePods) bool { return !p.run && len(p.pods) == 0 })
	if surge > 0 {
		d.surge(in, nodes, surge, desired)
		return
	}
	missing := 0
	var healthy []*corev1.Pod
	for _, p := range nodes {
		switch current, former, ok := in.pair(p); {
		case !ok || (current == nil) == (former == nil):
			missing++
		case former == nil:
			if !in.available(current) {
				missing++
			}
		case !in.available(former): // it is not available; deleting it makes nothing worse
			d.delete = append(d.delete, former)
			missing++
		default:
			healthy = append(healthy, former)
		}
	}
	d.delete = append(d.delete, healthy[:min(max(unavailable-missing, 0), len(healthy))]...)
}

func (d *decision) surge(in observed, nodes []*nodePods, most, desired int) {
	beside, up := 0, 0
	var leaving []*corev1.Pod
	var healthy []string
	for _, p := range nodes {
		current, former, ok := in.pair(p)
		if !ok {
			beside++
			continue
		}
		if serving := cmp.Or(former, current); serving != nil && in.available(serving) {
			up++
		}
		switch {
		case former == nil:
		case current != nil:
			if in.available(current) {
				d.delete = append(d.delete, former)
			} else {
				beside++
			}
		case p.gone:
		case !in.available(former) && !p.run:
			d.delete = append(d.delete, former)
		case !in.available(former):
			d.create = append(d.create, p.name)
		case !p.run:
			leaving = append(leaving, former)
		default:
			healthy = append(healthy, p.name)
		}
	}
	// On a node where none should run any longer, an available pod stays as long as it makes up for one that is missing elsewhere.
	d.delete = append(d.delete, leaving[:min(max(up-desired, 0), len(leaving))]...)
	d.create = append(d.create, healthy[:min(max(most-beside, 0), len(healthy))]...)
}

// limits resolves maxSurge and maxUnavailable for that many nodes, both rounded up.
func (in observed) limits(nodes int) (surge, unavailable int) {
	r := in.set.Spec.UpdateStrategy.RollingUpdate
	if r == nil || in.set.Spec.UpdateStrategy.Type != appsv1.RollingUpdateDaemonSetStrategyType {
		return 0, 1
	}
	zero, one := intstr.FromInt32(0), intstr.FromInt32(1)
	surge, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxSurge, zero), nodes, true)
	if err != nil {
		return 0, 1
	}
	unavailable, err = intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(r.MaxUnavailable, one), nodes, true)
	if err != nil {
		return 0, 1
	}
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// count computes the status. Of several pods on a node, the eldest counts.
func (in observed) count(nodes []*nodePods) appsv1.DaemonSetStatus {
	s := appsv1.DaemonSetStatus{
		ObservedGeneration: in.set.Generation, CollisionCount: in.set.Status.CollisionCount, Conditions: in.set.Status.Conditions,
	}
	if !in.settled {
		s.ObservedGeneration = in.set.Status.ObservedGeneration // the controller has not acted on the new generation yet
	}
	for _, p := range nodes {
		if p.run {
			s.DesiredNumberScheduled++
		}
		switch {
		case p.gone || len(p.pods) == 0:
			continue
		case !p.run:
			s.NumberMisscheduled++
			continue
		}
		s.CurrentNumberScheduled++
		if podconditions.IsReady(p.pods[0]) {
			s.NumberReady++
		}
		if in.available(p.pods[0]) {
			s.NumberAvailable++
		}
		if in.updated(p.pods[0]) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}
