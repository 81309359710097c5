// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podtopologyspread is the PodTopologySpread plug-in: it spreads pods over zones, hosts or other topology domains by nodes' labels.
// A DoNotSchedule constraint rejects nodes where the skew would be exceeded; ScheduleAnyway constraints score nodes. For pods of a service
// or controller that have no constraints of their own, the plug-in scores nodes by the system defaults: hosts with a skew of 3, zones with
// one of 5.
//
// Worked example: zones x and y hold 3 and 1 matching pods, maxSkew is 1. In x the skew would be 3+1-1 = 3, so it is rejected; in y it is
// 1+1-1 = 1, which is allowed.
package podtopologyspread

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	v1helper "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/podcount"
)

// Name is the plug-in's name.
const Name = "PodTopologySpread"

const (
	filterKey fwk.StateKey = "PreFilter" + Name
	scoreKey  fwk.StateKey = "PreScore" + Name
)

// New returns the plug-in.
func New(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, err := config.ArgsFor[*configv1.PodTopologySpreadArgs](Name, args)
	if err != nil {
		return nil, err
	}
	p := &plugin{
		handle: h, owners: newOwners(h), defaults: a.DefaultConstraints,
		unlabelled: fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
			"node(s) didn't match pod topology spread constraints (missing required label)").WithPlugin(Name),
		skewed: fwk.NewStatus(fwk.Unschedulable, "node(s) didn't match pod topology spread constraints").WithPlugin(Name),
	}
	if p.systems = a.DefaultingType == configv1.SystemDefaulting; p.systems {
		p.defaults = []corev1.TopologySpreadConstraint{
			{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
			{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
		}
	}
	return p, nil
}

type plugin struct {
	handle fwk.Handle
	owners *owners
	// defaults are the constraints for pods of a service or controller without constraints of their own. systems reports that they are the
	// system defaults, which also score nodes without all labels.
	defaults []corev1.TopologySpreadConstraint
	systems  bool
	counts   podcount.Counter

	unlabelled, skewed *fwk.Status // shared by all rejected pods, immutable
}

func (*plugin) Name() string { return Name }

// EventsToRegister registers changes of matching pods, and of nodes with their labels and taints.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Add | fwk.UpdatePodLabel | fwk.Delete}, QueueingHintFn: p.afterPod},
		{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.Delete | fwk.UpdateNodeLabel | fwk.UpdateNodeTaint}},
	}, nil
}

func (p *plugin) afterPod(_ klog.Logger, pod *corev1.Pod, oldObj, newObj any) (fwk.QueueingHint, error) {
	all, err := p.constraintsOf(pod, corev1.DoNotSchedule)
	if err != nil {
		return fwk.Queue, err
	}
	for _, obj := range []any{oldObj, newObj} {
		other, ok := obj.(*corev1.Pod)
		if ok && other != nil && other.Namespace == pod.Namespace &&
			slices.ContainsFunc(all, func(c constraint) bool { return c.selector.Matches(labels.Set(other.Labels)) }) {
			return fwk.Queue, nil
		}
	}
	return fwk.QueueSkip, nil
}

// constraint is a compiled constraint of a pod.
type constraint struct {
	key                 string
	maxSkew, minDomains int32
	selector            labels.Selector
	anyAffinity         bool // also count nodes that the pod's node affinity excludes
	mindTaints          bool // do not count nodes with taints that the pod does not tolerate
}

func constraints(pod *corev1.Pod, given []corev1.TopologySpreadConstraint, when corev1.UnsatisfiableConstraintAction) ([]constraint,
	error) {
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

// counts reports whether a node's pods count for the constraint.
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

// about returns a function that reports whether a pod matches the constraint and is not terminating.
func (c *constraint) about(namespace string) func(*corev1.Pod) bool {
	if _, selectable := c.selector.Requirements(); !selectable { // the selector matches nothing
		return func(*corev1.Pod) bool { return false }
	}
	return func(pod *corev1.Pod) bool {
		return pod.Namespace == namespace && pod.DeletionTimestamp == nil && c.selector.Matches(labels.Set(pod.Labels))
	}
}

// matching counts the pods of each node that match the constraint.
func (p *plugin) matching(nodes podcount.List, namespace string, c *constraint) []int32 {
	if _, selectable := c.selector.Requirements(); !selectable {
		return make([]int32, nodes.Len())
	}
	return p.counts.Count(nodes, namespace+"\x00"+c.selector.String(), c.about(namespace))
}

// tally counts those pods in the constraint's domains, on nodes that count and, if required, have the labels of all constraints.
func (p *plugin) tally(nodes podcount.List, pod *corev1.Pod, c *constraint, all []constraint,
	affinity nodeaffinity.RequiredNodeAffinity) *podcount.Tally {
	criterion := struct {
		Namespace, Selector, Key string
		Nothing                  bool
		All                      []string
		NodeSelector             map[string]string    `json:",omitempty"`
		NodeAffinity             *corev1.NodeSelector `json:",omitempty"`
		MindTaints               bool
		Tolerations              []corev1.Toleration `json:",omitempty"`
	}{Namespace: pod.Namespace, Selector: c.selector.String(), Key: c.key, MindTaints: c.mindTaints}
	if _, selectable := c.selector.Requirements(); !selectable {
		criterion.Nothing = true
	}
	for i := range all {
		criterion.All = append(criterion.All, all[i].key)
	}
	if !c.anyAffinity {
		criterion.NodeSelector = pod.Spec.NodeSelector
		if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
			criterion.NodeAffinity = a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		}
	}
	if c.mindTaints {
		criterion.Tolerations = pod.Spec.Tolerations
	}
	key, err := json.Marshal(criterion)
	if err != nil {
		panic(fmt.Sprintf("encode a criterion: %v", err)) // strings and API types always encode
	}
	about := c.about(pod.Namespace)
	return p.counts.Tally(nodes, string(key), func(n fwk.NodeInfo, add podcount.Share) {
		if node := n.Node(); hasAll(node, all) && c.counts(pod, node, affinity) {
			add(c.key, int64(podcount.Matching(n, about)))
		}
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
