// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

func selects(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(pod.Labels))
}

// evict ends the victims and takes back the nominations of lesser pods to the node.
func (p *plugin) evict(ctx context.Context, pod *corev1.Pod, c *candidate) error {
	node := c.node.Node().Name
	for _, victim := range c.victims {
		if w := p.handle.GetWaitingPod(victim.UID); w != nil {
			w.Preempt(Name, "preempted")
			continue
		}
		if victim.DeletionTimestamp != nil {
			continue
		}
		if err := p.end(ctx, pod, victim); err != nil {
			return fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
		}
		p.handle.EventRecorder().WithLogger(klog.Logger{}).Eventf(victim, pod, corev1.EventTypeNormal, "Preempted", "Preempting",
			"Preempted by pod %v on node %v", pod.UID, node)
	}
	for _, nominated := range p.handle.NominatedPodsForNode(node) {
		if profile.Priority(nominated.GetPod()) < profile.Priority(pod) {
			p.handle.AddNominatedPod(klog.Logger{}, nominated, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride})
		}
	}
	return nil
}

func (p *plugin) end(ctx context.Context, pod, victim *corev1.Pod) error {
	pods := p.handle.ClientSet().CoreV1().Pods(victim.Namespace)
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
			Message:            fmt.Sprintf("%s: preempting to accommodate a higher priority pod", pod.Spec.SchedulerName),
			ObservedGeneration: victim.Generation, LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		return err
	}
	if _, err := pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{}, "status"); err != nil {
		if apierrors.IsNotFound(err) {
			return nil // gone by itself
		}
		return err
	}
	err = pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
