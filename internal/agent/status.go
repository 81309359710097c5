// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// writeStatus makes the pod's status and writes it to the API server if it has changed. It
// returns the pod with it.
func (w *worker) writeStatus(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	n := w.n
	status := w.statusOf(pod)
	copied := *pod
	copied.Status = status

	n.mu.Lock()
	w.status = &status
	api := w.spec
	n.mu.Unlock()
	if api = w.shown(ctx, api); api == nil {
		return &copied
	}
	if w.removed || w.written != nil && podstatus.Equal(*w.written, status) {
		return &copied
	}
	if w.written == nil && podstatus.Equal(api.Status, status) {
		w.written = &status
		return &copied
	}
	if err := n.patchStatus(ctx, api, w.written, status); err != nil {
		if ctx.Err() == nil && !apierrors.IsNotFound(err) {
			n.Logger.Warn("write pod status", "pod", pod.Namespace+"/"+pod.Name, "err", err)
		}
		w.wakeLater(ctx)
		return &copied
	}
	w.written = &status
	return &copied
}

// wakeLater is for a status that could not be written: the next round tries again.
func (w *worker) wakeLater(ctx context.Context) {
	timer := w.n.Clock.NewTimer(retrySoon)
	w.n.running.Go(func() {
		defer timer.Stop()
		select {
		case <-w.n.ctx.Done():
		case <-timer.C():
			w.wake()
		}
	})
}

// patchStatus sends what differs from the API server's status, with the pod's UID, so that
// a pod of the same name made since is not hit.
func (n *node) patchStatus(ctx context.Context, api *corev1.Pod, written *corev1.PodStatus, status corev1.PodStatus) error {
	base := api.Status
	if written != nil {
		// What was written last may not have come back by the informer yet.
		base = *written
		base.Conditions = append(foreign(api.Status.Conditions), own(written.Conditions)...)
	}
	before, err := json.Marshal(corev1.Pod{Status: base})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: api.UID}, Status: status})
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return fmt.Errorf("compare status: %w", err)
	}
	_, err = n.client.CoreV1().Pods(api.Namespace).Patch(ctx, api.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// deletePod takes the pod out of the API server: nothing of it runs any more.
func (n *node) deletePod(ctx context.Context, pod *corev1.Pod) error {
	zero := int64(0)
	err := n.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// Pods implements Node.
func (n *node) Pods() []*corev1.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []*corev1.Pod
	for _, w := range n.workers {
		if w.spec == nil || w.gone {
			continue
		}
		pod := w.spec.DeepCopy()
		if w.status != nil {
			w.status.DeepCopyInto(&pod.Status)
		}
		out = append(out, pod)
	}
	return out
}
