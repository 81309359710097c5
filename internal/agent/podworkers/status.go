// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
	"github.com/mortise-dev/mortise/internal/objectversion"
)

// withStatus is the pod with the newest status that this node knows.
func (w *worker) withStatus(pod *corev1.Pod) *corev1.Pod {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.status == nil {
		return pod
	}
	copied := *pod
	status := *w.status
	// Conditions of others may be newer in the API server's.
	status.Conditions = append(foreign(pod.Status.Conditions), own(status.Conditions)...)
	copied.Status = status
	return &copied
}

func isOwn(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting:
		return true
	}
	return false
}

func foreign(list []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range list {
		if !isOwn(c.Type) {
			out = append(out, c)
		}
	}
	return out
}

func own(list []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range list {
		if isOwn(c.Type) {
			out = append(out, c)
		}
	}
	return out
}

// writeStatus makes the pod's status and writes it to the API server if it has changed. It
// returns the pod with it.
func (w *worker) writeStatus(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	pod, write := w.newStatus(ctx, pod)
	if write != nil {
		write()
	}
	return pod
}

// writeBeside is writeStatus, while the worker goes on with what takes longer. The round ends when it is written.
func (w *worker) writeBeside(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	pod, write := w.newStatus(ctx, pod)
	if write != nil {
		w.written.writing.Go(write)
	}
	return pod
}

// newStatus makes the pod's status. It returns the pod with it, and what writes it; nil: there is nothing to write.
func (w *worker) newStatus(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, func()) {
	m := w.m
	w.written.writing.Wait() // what it has written is looked at
	copied := *pod
	m.mu.Lock()
	api := w.spec
	m.mu.Unlock()
	// Conditions that others have set meanwhile stay.
	copied.Status.Conditions = append(foreign(api.Status.Conditions), own(pod.Status.Conditions)...)
	status := w.statusOf(&copied)
	copied.Status = status

	m.mu.Lock()
	w.status = &status
	m.mu.Unlock()
	if api = w.shown(ctx, api); api == nil {
		return &copied, nil
	}
	base, spoilt := api.Status, false
	if w.written.status != nil {
		// What was written last may not have come back by the informer yet.
		base = *w.written.status
		base.Conditions = append(foreign(api.Status.Conditions), own(w.written.status.Conditions)...)
		if spoilt = spoiled(api, *w.written.status, w.written.at); spoilt {
			base = shownOf(api, *w.written.status)
		}
	}
	if w.removed || w.written.status != nil && !spoilt && podstatus.Equal(*w.written.status, status) {
		return &copied, nil
	}
	if w.written.status == nil && podstatus.Equal(api.Status, status) {
		w.written.status = &status
		return &copied, nil
	}
	return &copied, func() {
		made, err := w.sendStatus(ctx, api, base, status)
		switch {
		case apierrors.IsNotFound(err):
			w.written.retry = retrySoon // it is about to be gone here too
			return
		case err != nil:
			w.written.retry = w.failed(ctx, pod, writePodStatus, err)
			return
		}
		w.succeeded(writePodStatus)
		w.written.status, w.written.at = &status, made.ResourceVersion
		m.mu.Lock()
		if w.made = made; w.spec != nil && !newer(made.ResourceVersion, w.spec.ResourceVersion) {
			w.made = nil
		}
		m.mu.Unlock()
	}
}

// sendStatus writes a status that was made of base. Where the newest version that the node knows of has just that, the pod is updated,
// which is refused if it is not the newest. That is half of a patch's work, so patches are for what others have written meanwhile.
func (w *worker) sendStatus(ctx context.Context, api *corev1.Pod, base, status corev1.PodStatus) (*corev1.Pod, error) {
	m := w.m
	newest := *api
	m.mu.Lock()
	if w.made != nil && w.made.UID == api.UID && newer(w.made.ResourceVersion, api.ResourceVersion) {
		newest = *w.made
	}
	m.mu.Unlock()
	if newest.ResourceVersion != "" && sameText(newest.Status, base) {
		newest.Status, newest.ManagedFields = status, nil // whose fields they are, the server knows
		// encoding writes to quantities, which are the informer's
		made, err := m.Client.CoreV1().Pods(api.Namespace).UpdateStatus(ctx, newest.DeepCopy(), metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			return made, err
		}
	}
	return m.patchStatus(ctx, api, base, status)
}

// newer reports whether resource version a is newer than b. Each version is newer than the empty one.
func newer(a, b string) bool {
	return b == "" || objectversion.Less(b, a)
}

// sameText says whether two statuses are the same but for the order of conditions: as text, since times are whole seconds there.
func sameText(a, b corev1.PodStatus) bool {
	a.Conditions, b.Conditions = byType(slices.Clone(a.Conditions)), byType(slices.Clone(b.Conditions))
	one, err := json.Marshal(a)
	other, wrong := json.Marshal(b)
	return err == nil && wrong == nil && bytes.Equal(one, other)
}

// spoiled says whether another client has changed what the node wrote of a pod since, as the controllers do when the node is silent: then
// it is to be written again. What the informer shows may be older than what was written; that says nothing.
func spoiled(api *corev1.Pod, written corev1.PodStatus, at string) bool {
	if api.ResourceVersion == "" || !newer(api.ResourceVersion, at) {
		return false
	}
	shown := shownOf(api, written)
	shown.Conditions, written.Conditions = own(shown.Conditions), own(written.Conditions)
	return !sameText(shown, written)
}

// shownOf is what the node wrote, with all that is the node's as the API server has it now.
func shownOf(api *corev1.Pod, written corev1.PodStatus) corev1.PodStatus {
	s := &api.Status
	written.Phase, written.Reason, written.Message, written.Conditions = s.Phase, s.Reason, s.Message, s.Conditions
	written.HostIP, written.HostIPs, written.PodIP, written.PodIPs, written.StartTime = s.HostIP, s.HostIPs, s.PodIP, s.PodIPs, s.StartTime
	written.InitContainerStatuses, written.ContainerStatuses = s.InitContainerStatuses, s.ContainerStatuses
	written.EphemeralContainerStatuses = s.EphemeralContainerStatuses
	return written
}

// echo says whether a definition differs from the one before it in nothing but the status that the node itself has made of it: then
// there is nothing to do.
func echo(old, pod *corev1.Pod, made *corev1.PodStatus) bool {
	if old == nil || made == nil || old.Generation != pod.Generation || graceOf(old) != graceOf(pod) ||
		!maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations) || !equality.Semantic.DeepEqual(old.Spec, pod.Spec) {
		return false
	}
	shown, want := pod.Status, *made
	want.Conditions = append(foreign(old.Status.Conditions), own(want.Conditions)...)
	return sameText(shown, want)
}

func byType(list []corev1.PodCondition) []corev1.PodCondition {
	slices.SortFunc(list, func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	return list
}

// patchStatus sends what differs from a status, with the pod's UID, so that a pod of the same name made since is not hit.
func (m *Manager) patchStatus(ctx context.Context, api *corev1.Pod, base, status corev1.PodStatus) (*corev1.Pod, error) {
	before, err := json.Marshal(corev1.Pod{Status: base})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	after, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: api.UID}, Status: status})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compare status: %w", err)
	}
	return m.Client.CoreV1().Pods(api.Namespace).Patch(ctx, api.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
}

// DeletePod takes the pod out of the API server: nothing of it runs any more.
func (m *Manager) DeletePod(ctx context.Context, pod *corev1.Pod) error {
	zero := int64(0)
	err := m.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// shown is the pod in the API server that the worker's pod is: itself, or its mirror.
func (w *worker) shown(ctx context.Context, api *corev1.Pod) *corev1.Pod {
	if !podspec.IsStatic(api) {
		return api
	}
	mirror, err := w.m.Mirrors.Mirror(ctx, api)
	if err != nil {
		w.written.retry = w.failed(ctx, api, createMirror, err) // the pod runs on in any case
		return nil
	}
	w.succeeded(createMirror)
	if mirror != nil && mirror.UID != w.written.mirror {
		w.written.mirror, w.written.status = mirror.UID, nil
	}
	return mirror
}
