// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubescheduler

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/plugins/noderesources"

	"github.com/mortise-dev/mortise/internal/scheduler/plugins/noderesources"
)

// rivals are a scorer of ours and kube-scheduler's, with the same arguments.
type rivals struct {
	name   string
	ours   fwk.ScorePlugin
	theirs fwk.ScorePlugin
	broken bool // kube-scheduler's has no cache for the expressions of classes, and panics where a class has some
}

// rate makes scorers over resources that devices may stand behind.
func (w *world) rate(ctx context.Context) {
	w.t.Helper()
	var ours []configv1.ResourceSpec
	var theirs []schedulerconfig.ResourceSpec
	for _, name := range w.some(3, "cpu", "example.com/gpu", "example.com/gpu", resourcev1.ResourceDeviceClassPrefix+"big") {
		if slices.ContainsFunc(ours, func(r configv1.ResourceSpec) bool { return r.Name == name }) {
			continue
		}
		weight := 1 + w.Int64N(5)
		ours, theirs = append(ours, configv1.ResourceSpec{Name: name, Weight: weight}),
			append(theirs, schedulerconfig.ResourceSpec{Name: name, Weight: weight})
	}
	kind := pick(w.dice, configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio)
	fit := &configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{Type: kind, Resources: ours}}
	theirFit := &schedulerconfig.NodeResourcesFitArgs{
		ScoringStrategy: &schedulerconfig.ScoringStrategy{Type: schedulerconfig.ScoringStrategyType(kind), Resources: theirs}}
	if kind == configv1.RequestedToCapacityRatio {
		fit.ScoringStrategy.RequestedToCapacityRatio = &configv1.RequestedToCapacityRatioParam{
			Shape: []configv1.UtilizationShapePoint{{Utilization: 0, Score: 1}, {Utilization: 60, Score: 3}, {Utilization: 100, Score: 9}}}
		theirFit.ScoringStrategy.RequestedToCapacityRatio = &schedulerconfig.RequestedToCapacityRatioParam{
			Shape: []schedulerconfig.UtilizationShapePoint{{Utilization: 0, Score: 1}, {Utilization: 60, Score: 3}, {Utilization: 100, Score: 9}}}
	}
	balanced, theirBalanced := &configv1.NodeResourcesBalancedAllocationArgs{}, &schedulerconfig.NodeResourcesBalancedAllocationArgs{}
	for i := range ours {
		balanced.Resources = append(balanced.Resources, configv1.ResourceSpec{Name: ours[i].Name, Weight: 1})
		theirBalanced.Resources = append(theirBalanced.Resources, schedulerconfig.ResourceSpec{Name: ours[i].Name, Weight: 1})
	}
	gates := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	made := func(p fwk.Plugin, err error) fwk.ScorePlugin {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
		return p.(fwk.ScorePlugin)
	}
	w.scorers = []rivals{
		{name: noderesources.FitName, ours: made(noderesources.NewFit(ctx, fit, w.own)),
			theirs: made(upstream.NewFit(ctx, theirFit, w.own, gates))},
		{name: noderesources.BalancedName, ours: made(noderesources.NewBalanced(ctx, balanced, w.own)),
			theirs: made(upstream.NewBalancedAllocation(ctx, theirBalanced, w.own, gates)), broken: true},
	}
}

// weigh compares the scores of the nodes that a pod fits, as one cycle has them.
func (w *world) weigh(pod *corev1.Pod, mine, other fwk.CycleState, nodes []fwk.NodeInfo) (ok bool) {
	w.t.Helper()
	for _, x := range w.scorers {
		st, want := prepare(w.t.Context(), x.ours, mine, pod, nodes), prepare(w.t.Context(), x.theirs, other, pod, nodes)
		if st.IsSkip() != want.IsSkip() || st.Code() == fwk.Error || want.Code() == fwk.Error {
			w.complain(pod, "PreScore of %s: %v, want %v", x.name, st, want)
			return false
		}
		if want.IsSkip() {
			continue
		}
		for _, node := range nodes {
			score, st := x.ours.Score(w.t.Context(), mine, pod, node)
			wanted, want, panicked := ask(w.t.Context(), x.theirs, other, pod, node)
			switch name := node.Node().Name; {
			case panicked && (!x.broken || !st.IsSuccess()):
				w.complain(pod, "%s of %s: %d %v, kube-scheduler's panics", x.name, name, score, st)
				return false
			case panicked:
			case w.differ(pod, x.name+" of "+name, st, want):
				return false
			case score != wanted:
				w.complain(pod, "%s of %s: %d, want %d", x.name, name, score, wanted)
				return false
			case w.counts(pod, node):
				w.byClass++
			}
		}
	}
	return true
}

// signs reports whether plug-ins all sign a pod.
func signs(ctx context.Context, pod *corev1.Pod, all ...fwk.Plugin) bool {
	return !slices.ContainsFunc(all, func(x fwk.Plugin) bool {
		_, st := x.(fwk.SignPlugin).SignPod(ctx, pod)
		return !st.IsSuccess()
	})
}

// prepare runs PreScore, of a plug-in that has it.
func prepare(ctx context.Context, x fwk.ScorePlugin, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	if p, ok := x.(fwk.PreScorePlugin); ok {
		return p.PreScore(ctx, state, pod, nodes)
	}
	return nil
}

func ask(ctx context.Context, x fwk.ScorePlugin, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) (score int64, st *fwk.Status,
	panicked bool) {
	defer func() { panicked = recover() != nil }()
	score, st = x.Score(ctx, state, pod, node)
	return score, st, false
}

// counts reports whether the pod asks for a resource of devices that the node has none of itself.
func (w *world) counts(pod *corev1.Pod, node fwk.NodeInfo) bool {
	for i := range pod.Spec.Containers {
		for name, q := range pod.Spec.Containers[i].Resources.Requests {
			if !q.IsZero() && node.GetAllocatable().GetScalarResources()[name] == 0 &&
				w.own.SharedDRAManager().DeviceClassResolver().GetDeviceClass(name) != nil {
				return true
			}
		}
	}
	return false
}
