// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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

// withStatus returns the pod with the newest status that the node has computed.
func (w *worker) withStatus(pod *corev1.Pod) *corev1.Pod {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if w.status == nil {
		return pod
	}
	copied := *pod
	status := *w.status
	// The API server may have newer conditions of other components.
	status.Conditions = append(foreign(pod.Status.Conditions), own(status.Conditions)...)
	copied.Status = status
	return &copied
}

func isOwn(t corev1.PodConditionType) bool {
	switch t {
	case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReadyToStartContainers,
		corev1.PodResizePending, corev1.PodResizeInProgress, corev1.AllContainersRestarting,
		podstatus.WaitingForPlugin:
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

// writeStatus computes the pod's status and writes it to the API server if it has changed. It returns the pod with the status.
func (w *worker) writeStatus(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	pod, write := w.newStatus(ctx, pod)
	if write != nil {
		write()
	}
	return pod
}

// writeBeside is like writeStatus, but writes while the worker goes on. The round ends after the write.
func (w *worker) writeBeside(ctx context.Context, pod *corev1.Pod) *corev1.Pod {
	pod, write := w.newStatus(ctx, pod)
	if write != nil {
		w.written.writing.Go(write)
	}
	return pod
}

// newStatus computes the pod's status. It returns the pod with the status, and the function that writes it; nil: there is nothing to write.
func (w *worker) newStatus(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, func()) {
	m := w.m
	w.written.writing.Wait() // the code below reads its results
	copied := *pod
	m.mu.Lock()
	api := w.spec
	m.mu.Unlock()
	// Keep the conditions that other components have set meanwhile.
	copied.Status.Conditions = append(foreign(api.Status.Conditions), own(pod.Status.Conditions)...)
	status := w.statusOf(&copied)
	copied.Status = status

	m.mu.Lock()
	w.status = &status
	m.noteChange()
	m.mu.Unlock()
	if api = w.shown(ctx, api); api == nil {
		return &copied, nil
	}
	sent := status
	if refused := w.final != nil && w.final.refused; !w.tornDown && !refused && !podstatus.Ended(api.Status.Phase) {
		sent = withheld(cmp.Or(w.written.status, &api.Status), status) // the informer may not have shown what was written last
	}
	base, spoilt := api.Status, false
	if w.written.status != nil {
		// The informer may not have shown the last written status yet.
		base = *w.written.status
		base.Conditions = append(foreign(api.Status.Conditions), own(w.written.status.Conditions)...)
		if spoilt = spoiled(api, *w.written.status, w.written.at); spoilt {
			base = shownOf(api, *w.written.status)
		}
	}
	if w.removed || w.written.status != nil && !spoilt && podstatus.Equal(*w.written.status, sent) {
		return &copied, nil
	}
	if w.written.status == nil && podstatus.Equal(api.Status, sent) {
		w.written.status = &sent
		return &copied, nil
	}
	if w.written.changed.IsZero() {
		w.written.changed = m.Clock.Now()
	}
	return &copied, func() {
		made, err := w.sendStatus(ctx, api, base, sent)
		switch {
		case apierrors.IsNotFound(err):
			w.written.retry = retrySoon // the pod is about to be removed here as well
			return
		case err != nil:
			w.written.retry = w.failed(ctx, pod, writePodStatus, err)
			return
		}
		w.succeeded(writePodStatus)
		m.Starts.synced(m.Clock.Since(w.written.changed))
		m.Starts.wrote(&base, &sent)
		w.written.changed = time.Time{}
		w.written.status, w.written.at = &sent, made.ResourceVersion
		m.mu.Lock()
		if w.made = made; w.spec != nil && !newer(made.ResourceVersion, w.spec.ResourceVersion) {
			w.made = nil
		}
		m.mu.Unlock()
	}
}

// withheld returns the status, without the end of the pod, of one that holds something of the node: the scheduler gives what an ended pod
// had to the next one at once. As in kubelet, its containers may be shown as terminated before.
func withheld(shown *corev1.PodStatus, status corev1.PodStatus) corev1.PodStatus {
	if !podstatus.Ended(status.Phase) || podstatus.Ended(shown.Phase) {
		return status
	}
	status.Phase, status.Reason, status.Message = cmp.Or(shown.Phase, corev1.PodPending), shown.Reason, shown.Message
	return status
}

// sendStatus writes a status that was computed from base. It updates the pod if the newest version known to the node has the status base:
// the API server rejects the update if there is a newer version. An update costs half as much as a patch, which is needed only after others
// have written.
func (w *worker) sendStatus(ctx context.Context, api *corev1.Pod, base, status corev1.PodStatus) (*corev1.Pod, error) {
	m := w.m
	newest := *api
	m.mu.Lock()
	if w.made != nil && w.made.UID == api.UID && newer(w.made.ResourceVersion, api.ResourceVersion) {
		newest = *w.made
	}
	m.mu.Unlock()
	if newest.ResourceVersion != "" && sameText(newest.Status, base) {
		newest.Status, newest.ManagedFields = status, nil // the API server keeps the owners of fields
		// Encoding changes quantities, and these belong to the informer.
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

// sameText reports whether two statuses are the same except for the order of conditions. It compares text, because there times have whole
// seconds.
func sameText(a, b corev1.PodStatus) bool {
	a.Conditions, b.Conditions = byType(slices.Clone(a.Conditions)), byType(slices.Clone(b.Conditions))
	one, err := json.Marshal(a)
	other, wrong := json.Marshal(b)
	return err == nil && wrong == nil && bytes.Equal(one, other)
}

// spoiled reports whether another client has changed the status that the node wrote, as the controllers do while the node is silent. The
// node must write it again then. If the informer shows an older version than the written one, the result is false.
func spoiled(api *corev1.Pod, written corev1.PodStatus, at string) bool {
	if api.ResourceVersion == "" || !newer(api.ResourceVersion, at) {
		return false
	}
	shown := shownOf(api, written)
	shown.Conditions, written.Conditions = own(shown.Conditions), own(written.Conditions)
	return !sameText(shown, written)
}

// shownOf returns the written status with the node's fields as the API server has them now.
func shownOf(api *corev1.Pod, written corev1.PodStatus) corev1.PodStatus {
	s := &api.Status
	written.Phase, written.Reason, written.Message, written.Conditions = s.Phase, s.Reason, s.Message, s.Conditions
	written.HostIP, written.HostIPs, written.PodIP, written.PodIPs, written.StartTime = s.HostIP, s.HostIPs, s.PodIP, s.PodIPs, s.StartTime
	written.InitContainerStatuses, written.ContainerStatuses = s.InitContainerStatuses, s.ContainerStatuses
	written.EphemeralContainerStatuses = s.EphemeralContainerStatuses
	return written
}

// echo reports whether a definition differs from the one before it only in the status that the node wrote. Then there is nothing to do.
func echo(old, pod *corev1.Pod, made *corev1.PodStatus) bool {
	if old == nil || made == nil || old.Generation != pod.Generation || graceOf(old) != graceOf(pod) ||
		!maps.Equal(old.Labels, pod.Labels) || !maps.Equal(old.Annotations, pod.Annotations) || !equality.Semantic.DeepEqual(old.Spec, pod.Spec) {
		return false
	}
	shown, want := pod.Status, *made
	if podstatus.Ended(want.Phase) && !podstatus.Ended(shown.Phase) { // see withheld
		want.Phase, want.Reason, want.Message = old.Status.Phase, old.Status.Reason, old.Status.Message
	}
	want.Conditions = append(foreign(old.Status.Conditions), own(want.Conditions)...)
	return sameText(shown, want)
}

func byType(list []corev1.PodCondition) []corev1.PodCondition {
	slices.SortFunc(list, func(a, b corev1.PodCondition) int { return strings.Compare(string(a.Type), string(b.Type)) })
	return list
}

// patchStatus sends the difference between two statuses, with the pod's UID, so that it never changes a newer pod of the same name.
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

// DeletePod removes the pod from the API server when nothing of it runs any more.
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

// shown returns the API server's object of the worker's pod: the pod itself, or its mirror pod.
func (w *worker) shown(ctx context.Context, api *corev1.Pod) *corev1.Pod {
	if !podspec.IsStatic(api) {
		return api
	}
	mirror, err := w.m.Mirrors.Mirror(ctx, api)
	if err != nil {
		w.written.retry = w.failed(ctx, api, createMirror, err) // the pod runs in any case
		return nil
	}
	w.succeeded(createMirror)
	if mirror != nil && mirror.UID != w.written.mirror {
		w.written.mirror, w.written.status = mirror.UID, nil
	}
	return mirror
}
