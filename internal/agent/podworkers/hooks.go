// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// hook is something that a pod needs before it can have a sandbox, and that is taken
// away when the pod is over. Set-up is level-driven: it is called in every round in which
// the pod may run, and does what is not done yet. TearDown is called when no container
// of the pod runs any more, also for pods that a former life of the node set up.
type hook struct {
	name string
	// setUp may return a *podadmission.Rejection, which fails the pod for good; all other errors are
	// tried again, and shown as events with the reason.
	setUp    func(ctx context.Context, w *worker, pod *corev1.Pod) error
	tearDown func(ctx context.Context, uid types.UID) error
	reason   string // of the event
}

// hooks is the order, outermost first; tear-down goes backwards. Device plug-ins and
// resource claims belong between admission and volumes, CSI with volumes, and
// credentials after them.
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
		{name: "cgroup", tearDown: m.Cgroups.Remove},
	}
}

// admit is the last guard against pods that do not fit: two schedulers may have raced.
// A pod that has containers already was admitted in a former life.
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

// TearDown runs the hooks backwards; one that fails does not keep the others from running.
func (m *Manager) TearDown(ctx context.Context, uid types.UID) error {
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
