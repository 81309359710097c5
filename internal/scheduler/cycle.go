// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
)

// longestNote is the longest message that an event can hold.
const longestNote = 1024

// attempt is one attempt to schedule a pod.
type attempt struct {
	*scheduler
	item    *queue.Item
	profile *profile.Profile
	state   fwk.CycleState
	node    string
	assumed *corev1.Pod // the pod with its node
	told    bool        // the pod's status may name the node by now
	apart   bool        // the attempt no longer counts towards the limit of s.ahead
	cycle   uint64
	began   time.Time
	note    *decisionlog.Decision // the decision's record; nil: not recorded
}

// schedule decides on a pod and starts its binding. It returns false if there is nothing to bind.
func (s *scheduler) schedule(ctx context.Context, item *queue.Item) (binds bool) {
	pod := item.Pod
	p := s.profiles[pod.Spec.SchedulerName]
	if p == nil || s.cache.IsAssumed(pod.UID) {
		s.queue.Done(pod)
		return false
	}
	if pod.DeletionTimestamp != nil {
		a := &attempt{scheduler: s, item: item, profile: p}
		a.event(pod, corev1.EventTypeWarning, "FailedScheduling", "Scheduling",
			fmt.Sprintf("skip schedule deleting pod: %v/%v", pod.Namespace, pod.Name)) // upstream's words
		s.queue.Done(pod)
		return false
	}
	s.attempts++
	pod = s.withNomination(item)
	a := &attempt{scheduler: s, item: item, profile: p, state: profile.NewCycleState(), cycle: s.attempts, began: s.options.Clock.Now()}
	a.sample()
	s.cache.Update(s.snapshot)
	decision, err := s.core.Schedule(ctx, p, s.snapshot, a.state, pod, item.Signature)
	took := s.options.Clock.Since(a.began)
	p.Meter().Decided(took)
	a.noted(a.began, took, decision.Node)
	if err != nil {
		a.fail(ctx, err, a.postFilter(ctx, err))
		return false
	}
	a.node = decision.Node
	if st := a.assume(ctx); !st.IsSuccess() {
		a.fail(ctx, rejection(pod, a.node, st), clearNomination())
		return false
	}
	s.cycles.Go(ctx, func() { a.bind(ctx) })
	return true
}

// withNomination returns the item's pod with its nominated node, which the pod's status shows a moment later.
func (s *scheduler) withNomination(item *queue.Item) *corev1.Pod {
	node := s.queue.Nominated(item.Pod.UID)
	if node == "" || item.Pod.Status.NominatedNodeName == node {
		return item.Pod
	}
	pod, info := *item.Pod, *item.PodInfo // the rest is shared and read-only
	pod.Status.NominatedNodeName = node
	info.Pod = &pod
	item.PodInfo = &info
	return &pod
}

// postFilter asks the PostFilter plug-ins how to make an unschedulable pod schedulable.
func (a *attempt) postFilter(ctx context.Context, err error) *fwk.NominatingInfo {
	var fit *core.FitError
	if !errors.As(err, &fit) || !a.profile.HasPostFilter() {
		return clearNomination()
	}
	result, st := a.profile.RunPostFilter(ctx, a.state, a.item.Pod, fit.Statuses)
	fit.PostFilterMessage = st.Message()
	if st.Code() == fwk.Error {
		a.logger.Warn("Preemption failed", "pod", klog.KObj(a.item.Pod), "error", st.AsError())
	}
	if result == nil {
		return nil
	}
	return result.NominatingInfo
}

// remaining returns the nomination after an attempt: the one that the attempt made, or the previous one.
func (a *attempt) remaining(nominate *fwk.NominatingInfo) *fwk.NominatingInfo {
	if nominate.Mode() == fwk.ModeOverride {
		return nominate
	}
	if node := a.queue.Nominated(a.item.Pod.UID); node != "" {
		return &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node}
	}
	return nominate
}

func clearNomination() *fwk.NominatingInfo {
	return &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride}
}

// rejection is the error of a plug-in that rejected the pod on its selected node while the pod can still wait for an event.
func rejection(pod *corev1.Pod, node string, st *fwk.Status) error {
	if !st.IsRejected() {
		return st.AsError()
	}
	e := &core.FitError{
		Pod: pod, Nodes: 1, Statuses: core.NewStatuses(node, st),
		UnschedulablePlugins: sets.New(st.Plugin()), PendingPlugins: sets.New[string](),
	}
	if st.Code() == fwk.Pending {
		e.PendingPlugins.Insert(st.Plugin())
	}
	return e
}

// refusal is the error of a pod that was rejected so late that the scheduler retries it without an event.
type refusal struct{ error }

// assume adds the pod to the cache on its node, and runs the Reserve and Permit plug-ins.
func (a *attempt) assume(ctx context.Context) *fwk.Status {
	pod := *a.item.Pod // the rest is shared and read-only
	pod.Spec.NodeName = a.node
	a.assumed = &pod
	info := *a.item.PodInfo
	info.Pod = &pod
	if err := a.cache.Assume(&info); err != nil {
		a.assumed = nil
		return fwk.AsStatus(err)
	}
	a.queue.DeleteNominatedPodIfExists(&pod)
	if st := a.profile.RunReservePluginsReserve(ctx, a.state, a.assumed, a.node); !st.IsSuccess() {
		a.forget(ctx)
		return st
	}
	if st := a.profile.RunPermit(ctx, a.state, a.assumed, a.node); !st.IsSuccess() && !st.IsWait() {
		a.forget(ctx)
		return st
	}
	return nil
}

func (a *attempt) forget(ctx context.Context) {
	a.profile.RunReservePluginsUnreserve(ctx, a.state, a.assumed, a.node)
	a.cache.Forget(a.assumed)
}

// bind waits for Permit and binds the pod. It runs concurrently with the scheduling loop.
func (a *attempt) bind(ctx context.Context) {
	defer a.options.Metrics.Binding()()
	defer a.part()
	err := a.tryToBind(ctx)
	if err == nil {
		a.bound()
		a.measure(metrics.Scheduled)
		a.event(a.assumed, corev1.EventTypeNormal, "Scheduled", "Binding",
			"Successfully assigned "+a.assumed.Namespace+"/"+a.assumed.Name+" to "+a.node)
		a.profile.RunPostBind(ctx, a.state, a.assumed, a.node)
		return
	}
	a.forget(ctx)
	if ctx.Err() != nil {
		return
	}
	gone := queue.Event{ClusterEvent: fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, Old: a.assumed}
	var fit *core.FitError
	if late := (refusal{}); errors.As(err, &fit) || errors.As(err, &late) {
		a.queue.MoveOnEventExcept(ctx, gone, a.assumed)
	} else {
		a.queue.MoveOnEvent(ctx, gone)
	}
	a.fail(ctx, err, clearNomination())
}

// part lets the loop continue without counting the attempt: it is over, or may wait for a long time.
func (a *attempt) part() {
	if !a.apart {
		a.apart = true
		a.attemptDone()
	}
}

// tryToBind runs the binding cycle, from Permit to Bind.
func (a *attempt) tryToBind(ctx context.Context) error {
	flight := a.profile.RunPreBindPreFlights(ctx, a.state, a.assumed, a.node)
	if flight.IsError() {
		return flight.AsError()
	}
	if flight.IsSuccess() || a.profile.Waits(a.assumed) {
		a.part()
		// Binding will take a while: nominate the node, so that other components know it.
		there := &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: a.node}
		a.told = true
		if err := a.patch(ctx, a.assumed, nil, there); err != nil && ctx.Err() == nil {
			a.logger.Warn("Could not nominate a node", "pod", klog.KObj(a.assumed), "node", a.node, "error", err)
		}
	}
	if st := a.profile.WaitOnPermit(ctx, a.assumed); !st.IsSuccess() {
		return rejection(a.item.Pod, a.node, st)
	}
	// From here on a failure does not depend on the pod, so the queue need not record events for it.
	a.queue.Done(a.item.Pod)
	st := a.preBind(ctx, flight)
	if st.IsSuccess() {
		st = a.bindNow(ctx)
	}
	if st.IsRejected() {
		return refusal{st.AsError()}
	}
	return st.AsError()
}

// preBind runs the PreBind plug-ins. Preempting the pod meanwhile cancels them.
func (a *attempt) preBind(ctx context.Context, flight *fwk.Status) *fwk.Status {
	if !flight.IsSuccess() {
		return nil // no plug-in has anything to do
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.profile.AddPodInPreBind(a.assumed.UID, cancel)
	defer a.profile.RemovePodInPreBind(a.assumed.UID)
	if st := a.profile.RunPreBind(ctx, a.state, a.assumed, a.node); !st.IsSuccess() {
		return st
	}
	if p := a.profile.GetPodInPreBind(a.assumed.UID); p != nil && !p.MarkPrebound() {
		return fwk.AsStatus(context.Cause(ctx))
	}
	return nil
}

// bindNow binds the pod with the first extender that handles it, or with a plug-in.
func (a *attempt) bindNow(ctx context.Context) *fwk.Status {
	select {
	case a.binding <- struct{}{}:
		defer func() { <-a.binding }()
	case <-ctx.Done():
		return fwk.AsStatus(ctx.Err())
	}
	for _, e := range a.profile.Extenders() {
		if !e.IsBinder() || !e.IsInterested(a.assumed) {
			continue
		}
		err := e.Bind(&corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: a.assumed.Namespace, Name: a.assumed.Name, UID: a.assumed.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: a.node},
		})
		if err != nil && e.IsIgnorable() {
			a.logger.Warn("Extender failed to bind the pod, skipping the extender", "extender", e.Name(), "pod", klog.KObj(a.assumed), "error", err)
			continue
		}
		return fwk.AsStatus(err)
	}
	return a.profile.RunBind(ctx, a.state, a.assumed, a.node)
}

// fail requeues the pod and reports the reason, in an event and in its PodScheduled condition.
func (a *attempt) fail(ctx context.Context, err error, nominate *fwk.NominatingInfo) {
	if ctx.Err() != nil {
		return
	}
	reason := corev1.PodReasonSchedulerError
	a.item.UnschedulablePlugins, a.item.PendingPlugins = nil, nil
	var fit *core.FitError
	var late refusal
	switch {
	case errors.As(err, &late):
		reason = corev1.PodReasonUnschedulable
	case errors.As(err, &fit):
		reason = corev1.PodReasonUnschedulable
		a.item.UnschedulablePlugins, a.item.PendingPlugins = fit.UnschedulablePlugins, fit.PendingPlugins
	case errors.Is(err, core.ErrNoNodes):
		reason = corev1.PodReasonUnschedulable
		a.item.UnschedulablePlugins = a.helpedByNodes()
	default:
		a.logger.Warn("Scheduling failed, retrying", "pod", klog.KObj(a.item.Pod), "error", err)
	}
	if reason == corev1.PodReasonSchedulerError {
		a.measure(metrics.Error)
	} else {
		a.measure(metrics.Unschedulable)
	}
	pod, lookup := a.pods.Pods(a.item.Pod.Namespace).Get(a.item.Pod.Name)
	if lookup != nil || pod.Spec.NodeName != "" || pod.UID != a.item.Pod.UID {
		// The pod is deleted, bound after all, or replaced by another of the same name: do not retry.
		a.queue.Done(a.item.Pod)
		if lookup != nil || pod.UID != a.item.Pod.UID {
			return
		}
	} else {
		if a.queue.AnyNominated() || nominate.Mode() == fwk.ModeOverride && nominate.NominatedNodeName != "" {
			info, _ := nodeinfo.NewPodInfo(pod)
			a.queue.AddNominatedPod(klog.Logger{}, info, a.remaining(nominate)) // before the queue tries the pod again
		}
		a.queue.Failed(ctx, a.item, pod) // the queue owns the item from here on
	}
	message := err.Error()
	a.failed(err, message, nominate)
	a.event(pod, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", shorten(message))
	if err := a.patch(ctx, pod, &corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: pod.Generation,
	}, nominate); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
		a.logger.Warn("Could not update the pod condition", "pod", klog.KObj(pod), "error", err)
	}
}

// helpedByNodes returns the plug-ins whose rejections a new node may resolve. While there is no node at all, the pod counts as rejected by
// them.
func (a *attempt) helpedByNodes() sets.Set[string] {
	out := sets.New[string]()
	for plugin, registered := range a.profile.Events() {
		for _, r := range registered {
			if (r.Event.Resource == fwk.Node || r.Event.Resource == fwk.WildCard) && r.Event.ActionType&fwk.Add != 0 {
				out.Insert(plugin)
			}
		}
	}
	return out
}

func shorten(message string) string {
	if len(message) <= longestNote {
		return message
	}
	const end = " ..."
	return message[:longestNote-len(end)] + end
}

// event records an event about the pod as the pod's profile.
func (a *attempt) event(pod *corev1.Pod, kind, reason, action, note string) {
	a.reporters[a.profile.Name()].Event(pod, nil, kind, reason, action, note)
}

// patch updates the pod's condition, if one is given, and its nomination, unless both are unchanged.
func (a *attempt) patch(ctx context.Context, pod *corev1.Pod, condition *corev1.PodCondition, nominate *fwk.NominatingInfo) error {
	status := map[string]any{}
	if condition != nil && a.transition(pod, condition) {
		status["conditions"] = []*corev1.PodCondition{condition}
	}
	if nominate.Mode() == fwk.ModeOverride && (a.told || pod.Status.NominatedNodeName != nominate.NominatedNodeName) {
		status["nominatedNodeName"] = nominate.NominatedNodeName
		if nominate.NominatedNodeName == "" {
			status["nominatedNodeName"] = nil
		}
	}
	if len(status) == 0 {
		return nil
	}
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode status patch: %w", err)
	}
	_, err = a.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status")
	return err
}

// transition completes the condition and reports whether it differs from the pod's.
func (a *attempt) transition(pod *corev1.Pod, condition *corev1.PodCondition) bool {
	condition.LastTransitionTime = metav1.NewTime(a.options.Clock.Now())
	for _, c := range pod.Status.Conditions {
		if c.Type != condition.Type {
			continue
		}
		if c.Status == condition.Status {
			condition.LastTransitionTime = c.LastTransitionTime
		}
		return c.Status != condition.Status || c.Reason != condition.Reason || c.Message != condition.Message ||
			c.ObservedGeneration != condition.ObservedGeneration
	}
	return true
}
