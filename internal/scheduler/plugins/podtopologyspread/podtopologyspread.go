// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podtopologyspread is the PodTopologySpread plug-in: pods alike are spread over zones, hosts or what else nodes'
// labels tell apart. A DoNotSchedule constraint refuses nodes where the spread would exceed its skew; ScheduleAnyway ones
// rank nodes. Pods without constraints of their own, but of a service or a controller, are ranked by the system's: hosts
// with a skew of 3, zones with one of 5.
//
// Worked example: zones x and y hold 3 and 1 matching pods, maxSkew is 1. In x the skew would be 3+1-1 = 3, refused; in y
// it is 1+1-1 = 1, allowed.
package podtopologyspread

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
)

// Name is the plug-in's name.
const Name = "PodTopologySpread"

const (
	filterKey fwk.StateKey = "PreFilter" + Name
	scoreKey  fwk.StateKey = "PreScore" + Name
)

// New makes the plug-in.
func New(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &plugin{handle: h, owners: newOwners(h)}, nil
}

type plugin struct {
	handle fwk.Handle
	owners *owners
	counts podcount.Counter
}

func (*plugin) Name() string { return Name }

// EventsToRegister says that pods alike, and nodes and their labels and taints, may help.
func (*plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Add | fwk.UpdatePodLabel | fwk.Delete}, QueueingHintFn: afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.Delete | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint}},
	}, nil
}

func afterPod(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	all, err := constraints(pod, pod.Spec.TopologySpreadConstraints, corev1.DoNotSchedule)
	if err != nil {
		return fwk.Queue, err
	}
	for _, obj := range []any{oldObj, newObj} {
		p, ok := obj.(*corev1.Pod)
		if ok && p != nil && p.Namespace == pod.Namespace && slices.ContainsFunc(all, func(c constraint) bool { return c.selector.Matches(labels.Set(p.Labels)) }) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// constraint is a pod's constraint, compiled.
type constraint struct {
	key                 string
	maxSkew, minDomains int32
	selector            labels.Selector
	anyAffinity         bool // nodes count that the pod's node affinity leaves out
	mindTaints          bool // nodes with taints that the pod does not tolerate do not count
}

func constraints(pod *corev1.Pod, given []corev1.TopologySpreadConstraint, when corev1.UnsatisfiableConstraintAction) ([]constraint, error) {
	var out []constraint
	for _, g := range given {
		if g.WhenUnsatisfiable != when {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(g.LabelSelector)
		if err != nil {
			return nil, err
		}
		for _, key := range g.MatchLabelKeys {
			if value, ok := pod.Labels[key]; ok {
				r, err := labels.NewRequirement(key, selection.In, []string{value})
				if err != nil {
					return nil, err
				}
				selector = selector.Add(*r)
			}
		}
		c := constraint{key: g.TopologyKey, maxSkew: g.MaxSkew, minDomains: 1, selector: selector}
		if g.MinDomains != nil {
			c.minDomains = *g.MinDomains
		}
		c.anyAffinity = g.NodeAffinityPolicy != nil && *g.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore
		c.mindTaints = g.NodeTaintsPolicy != nil && *g.NodeTaintsPolicy == corev1.NodeInclusionPolicyHonor
		out = append(out, c)
	}
	return out, nil
}

// counts says whether a node's pods count for the constraint.
func (c *constraint) counts(pod *corev1.Pod, node *corev1.Node, affinity nodeaffinity.RequiredNodeAffinity) bool {
	if !c.anyAffinity {
		if match, _ := affinity.Match(node); !match {
			return false
		}
	}
	if c.mindTaints {
		_, untolerated := v1helper.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations,
			func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, false)
		return !untolerated
	}
	return true
}

// matching counts the pods of each node that the constraint is about: those that are not going.
func (p *plugin) matching(nodes []fwk.NodeInfo, namespace string, selector labels.Selector) []int32 {
	if _, selectable := selector.Requirements(); !selectable { // it selects nothing
		return make([]int32, len(nodes))
	}
	return p.counts.Count(nodes, namespace+"\x00"+selector.String(), func(pod *corev1.Pod) bool {
		return pod.Namespace == namespace && pod.DeletionTimestamp == nil && selector.Matches(labels.Set(pod.Labels))
	})
}

func hasAll(node *corev1.Node, all []constraint) bool {
	for i := range all {
		if _, ok := node.Labels[all[i].key]; !ok {
			return false
		}
	}
	return true
}
