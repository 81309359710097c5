// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
	resourcehelper "k8s.io/component-helpers/resource"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/queue"
)

func happened(r fwk.EventResource, a fwk.ActionType, old, obj any) queue.Event {
	return queue.Event{ClusterEvent: fwk.ClusterEvent{Resource: r, ActionType: a}, Old: old, New: obj}
}

// nodeHandler updates the cache and the queue with nodes.
func (s *scheduler) nodeHandler(ctx context.Context) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*corev1.Node); ok {
				defer s.handled("NodeAdd")()
				s.cache.SetNode(node)
				s.queue.MoveOnEvent(ctx, happened(fwk.Node, fwk.Add, nil, node))
			}
		},
		UpdateFunc: func(oldObj, obj any) {
			old, ok := oldObj.(*corev1.Node)
			node, ok2 := obj.(*corev1.Node)
			if !ok || !ok2 {
				return
			}
			defer s.handled("NodeUpdate")()
			changes := nodeChanges(old, node)
			if len(changes) > 0 || old.Spec.Unschedulable != node.Spec.Unschedulable ||
				!equality.Semantic.DeepEqual(old.Status.Images, node.Status.Images) {
				s.cache.SetNode(node) // the scheduler reads nothing that a heartbeat changes
			}
			for _, c := range changes {
				s.queue.MoveOnEvent(ctx, happened(fwk.Node, c, old, node))
			}
		},
		DeleteFunc: func(obj any) {
			if node, ok := last(obj).(*corev1.Node); ok {
				defer s.handled("NodeDelete")()
				s.cache.RemoveNode(node.Name)
				s.queue.MoveOnEvent(ctx, happened(fwk.Node, fwk.Delete, node, nil))
			}
		},
	}
}

// last returns the last known state of an object whose deletion the informer missed.
func last(obj any) any {
	if t, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
		return t.Obj
	}
	return obj
}

func nodeChanges(old, node *corev1.Node) (out []fwk.ActionType) {
	if old.Spec.Unschedulable && !node.Spec.Unschedulable {
		out = append(out, fwk.UpdateNodeTaint)
	}
	if !equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) {
		out = append(out, fwk.UpdateNodeAllocatable)
	}
	if !maps.Equal(old.Labels, node.Labels) {
		out = append(out, fwk.UpdateNodeLabel)
	}
	if !equality.Semantic.DeepEqual(old.Spec.Taints, node.Spec.Taints) {
		out = append(out, fwk.UpdateNodeTaint)
	}
	if !maps.Equal(conditions(old), conditions(node)) {
		out = append(out, fwk.UpdateNodeCondition)
	}
	if !maps.Equal(old.Annotations, node.Annotations) {
		out = append(out, fwk.UpdateNodeAnnotation)
	}
	if !slices.Equal(old.Status.DeclaredFeatures, node.Status.DeclaredFeatures) {
		out = append(out, fwk.UpdateNodeDeclaredFeature)
	}
	return out
}

func conditions(node *corev1.Node) map[corev1.NodeConditionType]corev1.ConditionStatus {
	out := make(map[corev1.NodeConditionType]corev1.ConditionStatus, len(node.Status.Conditions))
	for _, c := range node.Status.Conditions {
		out[c.Type] = c.Status
	}
	return out
}

// podHandler updates the cache and the queue with pods: the cache with bound pods, the queue with unbound pods of a known profile.
func (s *scheduler) podHandler(ctx context.Context) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if pod, ok := obj.(*corev1.Pod); ok {
				s.podAdded(ctx, pod)
			}
		},
		UpdateFunc: func(oldObj, obj any) {
			old, ok := oldObj.(*corev1.Pod)
			pod, ok2 := obj.(*corev1.Pod)
			switch {
			case !ok || !ok2:
			case old.UID != pod.UID: // deleted and created again while the watch was interrupted
				s.podDeleted(ctx, old)
				s.podAdded(ctx, pod)
			default:
				s.podUpdated(ctx, old, pod)
			}
		},
		DeleteFunc: func(obj any) {
			if pod, ok := last(obj).(*corev1.Pod); ok {
				s.podDeleted(ctx, pod)
			}
		},
	}
}

// handled measures how long the handling of an event takes.
func (s *scheduler) handled(event string) func() {
	m := s.options.Metrics
	if m == nil {
		return func() {}
	}
	began := m.Began()
	return func() { m.Handled(event, began) }
}

func podEvent(pod *corev1.Pod, action string) string {
	if pod.Spec.NodeName != "" {
		return "AssignedPod" + action
	}
	return "UnscheduledPod" + action
}

func placed(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" && !ended(pod) }

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (s *scheduler) podAdded(ctx context.Context, pod *corev1.Pod) {
	defer s.handled(podEvent(pod, "Add"))()
	switch {
	case ended(pod):
	case placed(pod):
		s.cache.SetPod(pod)
		s.queue.MoveOnEvent(ctx, happened(fwk.AssignedPod, fwk.Add, nil, pod))
	default:
		s.queue.MoveOnEvent(ctx, happened(fwk.UnscheduledPod, fwk.Add, nil, pod))
		if s.profiles[pod.Spec.SchedulerName] != nil {
			s.queue.Add(ctx, pod)
		}
	}
}

func (s *scheduler) podUpdated(ctx context.Context, old, pod *corev1.Pod) {
	defer s.handled(podEvent(pod, "Update"))()
	was, is := placed(old), placed(pod)
	switch {
	case ended(pod):
		s.podDeleted(ctx, old)
	case !was && is:
		s.cache.SetPod(pod)
		s.queue.Delete(pod) // another scheduler may have bound it
		s.queue.MoveOnEvent(ctx, happened(fwk.AssignedPod, fwk.Add, nil, pod))
	case is:
		changes := podChanges(old, pod)
		if len(changes) > 0 || old.Generation != pod.Generation || (old.DeletionTimestamp == nil) != (pod.DeletionTimestamp == nil) {
			s.cache.SetPod(pod) // the status from the node does not matter here
		}
		for _, c := range changes {
			s.queue.MoveOnEvent(ctx, happened(fwk.AssignedPod, c, old, pod))
		}
	case s.profiles[pod.Spec.SchedulerName] == nil:
	case s.cache.IsAssumed(pod.UID):
		if pod.DeletionTimestamp != nil && old.DeletionTimestamp == nil {
			s.profiles[pod.Spec.SchedulerName].RejectWaitingPod(pod.UID) // a binding in progress will fail, or have no effect
		}
	default:
		var events []queue.Event
		for _, c := range podChanges(old, pod) {
			s.queue.MoveOnEvent(ctx, happened(fwk.UnscheduledPod, c, old, pod))
			events = append(events, happened(fwk.TargetPod, c, old, pod))
		}
		s.queue.Update(ctx, old, pod, events)
	}
}

func (s *scheduler) podDeleted(ctx context.Context, pod *corev1.Pod) {
	defer s.handled(podEvent(pod, "Delete"))()
	if placed(pod) {
		s.cache.RemovePod(pod.UID)
		s.queue.DeleteNominatedPodIfExists(pod)
		s.queue.MoveOnEvent(ctx, happened(fwk.AssignedPod, fwk.Delete, pod, nil))
		return
	}
	p := s.profiles[pod.Spec.SchedulerName]
	if p == nil || ended(pod) {
		return
	}
	s.queue.Delete(pod)
	s.cache.Forget(pod) // it may be assumed; a binding in progress will fail
	p.RejectWaitingPod(pod.UID)
	if waits := p.GetPodInPreBind(pod.UID); waits != nil {
		waits.CancelPod("pod does not exist any more")
	}
	s.queue.MoveOnEvent(ctx, happened(fwk.UnscheduledPod, fwk.Delete, pod, nil))
}

func podChanges(old, pod *corev1.Pod) (out []fwk.ActionType) {
	if !maps.Equal(old.Labels, pod.Labels) {
		out = append(out, fwk.UpdatePodLabel)
	}
	if down, up := scaled(old, pod); down || up {
		if down {
			out = append(out, fwk.UpdatePodScaleDown)
		}
		if up {
			out = append(out, fwk.UpdatePodScaleUp)
		}
	}
	if len(pod.Spec.SchedulingGates) == 0 && len(old.Spec.SchedulingGates) > 0 {
		out = append(out, fwk.UpdatePodSchedulingGatesEliminated)
	}
	if len(pod.Spec.Tolerations) != len(old.Spec.Tolerations) {
		out = append(out, fwk.UpdatePodToleration)
	}
	if !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) {
		out = append(out, fwk.UpdatePodGeneratedResourceClaim)
	}
	return out
}

// scaled reports whether the pod requests less of any resource than before, and whether it requests more.
func scaled(old, pod *corev1.Pod) (down, up bool) {
	o := resourcehelper.PodResourcesOptions{UseStatusResources: true}
	before, after := resourcehelper.PodRequests(old, o), resourcehelper.PodRequests(pod, o)
	for name, q := range before {
		now, ok := after[name]
		down = down || !ok || q.Cmp(now) > 0
	}
	for name, q := range after {
		was, ok := before[name]
		up = up || !ok || q.Cmp(was) > 0
	}
	return down, up
}
