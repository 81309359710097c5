// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// hook prepares something that a pod needs before it can have a sandbox, and removes it when the pod has ended. setUp is level-driven: each
// round in which the pod may run calls it, and it does what is missing. tearDown is called when no container of the pod runs any more, also
// for pods that a former process of the node set up.
type hook struct {
	name string
	// setUp may return a *podadmission.Rejection, which fails the pod for good, or a *containermanager.Hold, with which the pod waits. The
	// worker retries after any other error, and records it as an event with the reason.
	setUp    func(ctx context.Context, w *worker, pod *corev1.Pod) error
	tearDown func(ctx context.Context, uid types.UID) error
	reason   string // of the event
}

// hooks is the order of set-up; tear-down runs backwards. Devices, CPUs and memory are allocated
// with admission, and resource claims prepared after volumes, as kubelet does; CSI belongs with volumes.
func hooks(m *Manager) []hook {
	return []hook{
		{name: "admission", setUp: m.admit},
		{name: "references", setUp: func(ctx context.Context, _ *worker, pod *corev1.Pod) error {
			m.References.RegisterPod(ctx, pod)
			return nil
		}, tearDown: func(_ context.Context, uid types.UID) error {
			m.References.UnregisterPod(uid)
			return nil
		}},
		{name: "users", tearDown: m.Users.Release},
		{name: "volumes", reason: "FailedMount", setUp: func(ctx context.Context, w *worker, pod *corev1.Pod) error {
			return m.Volumes.SetUp(ctx, pod, podstatus.PodIPs(pod, w.state, m.Addresses.Texts()))
		}, tearDown: m.Volumes.TearDown},
		{name: "resources", reason: "FailedPrepareDynamicResources", setUp: func(ctx context.Context, _ *worker, pod *corev1.Pod) error {
			return m.NodeResources.Prepare(ctx, pod)
		}, tearDown: m.NodeResources.Release},
		{name: "cgroup", tearDown: m.Cgroups.Remove},
	}
}

// admit checks whether the pod fits: two schedulers may have used the same resources. A pod with containers was admitted by a former
// process.
func (m *Manager) admit(ctx context.Context, w *worker, pod *corev1.Pod) error {
	if w.admitted {
		return nil
	}
	if len(w.state.Sandboxes) > 0 || len(w.state.Containers) > 0 {
		m.CountPod(w.uid)
	} else if err := m.Admission.Admit(ctx, pod); err != nil {
		return err
	}
	w.admitted = true
	return nil
}

// TearDown runs the hooks backwards. If one fails, the others still run. Calls of plug-ins are the pod's, while the node knows it.
func (m *Manager) TearDown(ctx context.Context, uid types.UID) error {
	if pod := m.Spec(uid); pod != nil {
		ctx = extension.For(ctx, pod.Namespace, pod.Name)
	}
	var failed []error
	for i := len(m.hooks) - 1; i >= 0; i-- {
		h := m.hooks[i]
		if h.tearDown == nil {
			continue
		}
		if err := h.tearDown(ctx, uid); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", h.name, err))
		}
	}
	return errors.Join(failed...)
}
