// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

func selects(b *policyv1.PodDisruptionBudget, pod *corev1.Pod) bool {
	s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	return err == nil && !s.Empty() && s.Matches(labels.Set(pod.Labels))
}

// atOnce is how many victims are ended at a time.
const atOnce = 16

// evict ends the victims beside the scheduling of others, and takes back the nominations of lesser pods to the node. Until it is over the
// pod is not tried again (PreEnqueue); it is when there is nothing to wait for, since a victim could not be ended or was not on the node
// yet.
func (p *plugin) evict(ctx context.Context, pod *corev1.Pod, c *candidate) {
	victims := slices.DeleteFunc(slices.Clone(c.victims), func(v *corev1.Pod) bool { return v.DeletionTimestamp != nil })
	if len(victims) == 0 {
		return
	}
	p.begin(pod.UID)
	p.running.Go(func() {
		began := p.metrics.Began()
		again, err := p.evictAll(ctx, pod, victims, c.node.Node().Name)
		p.over(pod.UID, err != nil)
		p.metrics.Evicted(err == nil, began)
		if again && ctx.Err() == nil {
			p.handle.Activate(klog.Logger{}, map[string]*corev1.Pod{pod.Namespace + "/" + pod.Name: pod})
		}
	})
}

// evictAll ends the victims, the last of them when the others are done with: by it the pod's waiting ends (see held). It says whether no
// event will tell of the end of the last.
func (p *plugin) evictAll(ctx context.Context, pod *corev1.Pod, victims []*corev1.Pod, node string) (again bool, err error) {
	p.takeBack(ctx, pod, node)
	errs := make([]error, len(victims))
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	last := len(victims) - 1
	for i, victim := range victims[:last] {
		slots <- struct{}{}
		all.Go(func() {
			_, errs[i] = p.preempt(ctx, pod, victim, node)
			<-slots
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return true, err
	}
	p.lastOf(pod.UID, victims[last])
	again, err = p.preempt(ctx, pod, victims[last], node)
	return again || err != nil, err
}

// preempt ends a victim: one that is not bound yet goes back to the queue at once, others are deleted. It says whether nothing is left to
// wait for.
func (p *plugin) preempt(ctx context.Context, pod, victim *corev1.Pod, node string) (gone bool, err error) {
	stopped := false
	note := "Preempted by pod %v on node %v" // upstream's words
	if w := p.handle.GetWaitingPod(victim.UID); w != nil {
		stopped = w.Preempt(Name, "preempted")
	} else if b := p.handle.GetPodInPreBind(victim.UID); b != nil {
		stopped = b.CancelPod("preempted by " + Name)
	}
	if stopped {
		note += " (in kube-scheduler memory)." // upstream's words
		p.spared(pod.UID, victim.UID)
	} else if err := p.end(ctx, pod, victim); apierrors.IsNotFound(err) {
		return true, nil // gone by itself
	} else if err != nil {
		return false, fmt.Errorf("preempt pod %s/%s: %w", victim.Namespace, victim.Name, err)
	}
	p.handle.EventRecorder().WithLogger(klog.Logger{}).Eventf(victim, pod, corev1.EventTypeNormal, "Preempted", "Preempting", note,
		pod.UID, node)
	return stopped, nil
}

// takeBack ends the nominations of lesser pods to the node, where they may fit no longer, so that they look for another.
func (p *plugin) takeBack(ctx context.Context, pod *corev1.Pod, node string) {
	again := map[string]*corev1.Pod{}
	for _, nominated := range p.handle.NominatedPodsForNode(node) {
		lesser := nominated.GetPod()
		if corev1helpers.PodPriority(lesser) >= corev1helpers.PodPriority(pod) {
			continue
		}
		p.handle.AddNominatedPod(klog.Logger{}, nominated, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride})
		again[lesser.Namespace+"/"+lesser.Name] = lesser
		data := fmt.Appendf(nil, `{"metadata":{"uid":%q},"status":{"nominatedNodeName":null}}`, lesser.UID)
		// What fails here is written at the pod's next attempt.
		_, _ = p.handle.ClientSet().CoreV1().Pods(lesser.Namespace).Patch(ctx, lesser.Name, types.StrategicMergePatchType, data,
			metav1.PatchOptions{}, "status")
	}
	if len(again) > 0 {
		p.handle.Activate(klog.Logger{}, again)
	}
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
		return err
	}
	return pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
}
