// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

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
func hooks(n *node) []hook {
	return []hook{
		{name: "admission", setUp: n.admit},
		{name: "references", setUp: n.follows, tearDown: n.unfollow},
		{name: "users", tearDown: n.users.Release},
		{name: "volumes", setUp: n.mountVolumes, tearDown: n.unmountVolumes, reason: "FailedMount"},
		{name: "cgroup", tearDown: n.cgroups.Remove},
	}
}

// admit is the last guard against pods that do not fit: two schedulers may have raced.
// A pod that has containers already was admitted in a former life.
func (n *node) admit(ctx context.Context, w *worker, pod *corev1.Pod) error {
	if w.admitted {
		return nil
	}
	if len(w.state.Sandboxes) > 0 || len(w.state.Containers) > 0 {
		n.CountPod(w.uid)
	} else if err := n.admission.Admit(ctx, pod); err != nil {
		return err
	}
	w.admitted = true
	return nil
}

func (n *node) follows(ctx context.Context, _ *worker, pod *corev1.Pod) error {
	n.objects.RegisterPod(ctx, pod)
	return nil
}

func (n *node) unfollow(_ context.Context, uid types.UID) error {
	n.objects.UnregisterPod(uid)
	return nil
}

func (n *node) mountVolumes(ctx context.Context, w *worker, pod *corev1.Pod) error {
	return n.volumes.SetUp(ctx, pod, podstatus.PodIPs(pod, w.state, n.ips()))
}

func (n *node) unmountVolumes(ctx context.Context, uid types.UID) error {
	return n.volumes.TearDown(ctx, uid)
}

// TearDown runs the hooks backwards; one that fails does not keep the others from running.
func (n *node) TearDown(ctx context.Context, uid types.UID) error {
	var failed []error
	for i := len(n.hooks) - 1; i >= 0; i-- {
		h := n.hooks[i]
		if h.tearDown == nil {
			continue
		}
		if err := h.tearDown(ctx, uid); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", h.name, err))
		}
	}
	return errors.Join(failed...)
}
