// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// What is said of a node that shuts down, in kubelet's words.
const (
	shutdownRefusal = "Pod was rejected as the node is shutting down."
	shutdownMessage = "Pod was terminated in response to imminent node shutdown."
	shutdownReason  = "node is shutting down" // why the node is not ready
)

// systemCritical is the priority from which on a pod counts as critical.
const systemCritical = 2_000_000_000

// shutdownGroups are the priorities that pods are ended by, the least first, with the time that each group has; none where
// pods are to run on.
func shutdownGroups(k *configv1beta1.KubeletConfiguration) []configv1beta1.ShutdownGracePeriodByPodPriority {
	all, critical := k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration
	groups := slices.Clone(k.ShutdownGracePeriodByPodPriority)
	if len(groups) == 0 && all > 0 {
		groups = []configv1beta1.ShutdownGracePeriodByPodPriority{
			{Priority: 0, ShutdownGracePeriodSeconds: int64((all - critical) / time.Second)},
			{Priority: systemCritical, ShutdownGracePeriodSeconds: int64(critical / time.Second)},
		}
	}
	slices.SortFunc(groups, func(a, b configv1beta1.ShutdownGracePeriodByPodPriority) int {
		return cmp.Compare(a.Priority, b.Priority)
	})
	return groups
}

// groupOf is the group that a priority belongs to: the highest that is not above it, or the lowest.
func groupOf(groups []configv1beta1.ShutdownGracePeriodByPodPriority, priority int32) int {
	at := 0
	for i, g := range groups {
		if g.Priority <= priority {
			at = i
		}
	}
	return at
}

// outlast is a context that goes on after its parent until the pods have been ended, where they are to be; else its
// parent. Cancel frees it.
func (n *node) outlast(ctx context.Context) (inner context.Context, cancel context.CancelFunc) {
	if len(shutdownGroups(n.Kubelet)) == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// shutDown ends the node's pods, group by group, after outer is done, and then the node itself by cancel.
func (n *node) shutDown(outer, inner context.Context, cancel context.CancelFunc) error {
	groups := shutdownGroups(n.Kubelet)
	if len(groups) == 0 {
		return nil
	}
	select {
	case <-inner.Done():
		return nil
	case <-outer.Done():
	}
	defer cancel()
	n.mu.Lock()
	n.leaving = true
	n.mu.Unlock()
	n.runtimeTrouble() // the heartbeat says that the node is not ready
	n.Logger.Info("the node shuts down: its pods are ended")
	for i, g := range groups {
		var uids []types.UID
		for _, pod := range n.activePods(nil) {
			priority := int32(0)
			if pod.Spec.Priority != nil {
				priority = *pod.Spec.Priority
			}
			if groupOf(groups, priority) != i {
				continue
			}
			seconds := g.ShutdownGracePeriodSeconds
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
				seconds = min(seconds, *own)
			}
			n.end(pod.UID, &verdict{reason: "Terminated", message: shutdownMessage, grace: seconds, at: n.Clock.Now(), disrupted: true})
			uids = append(uids, pod.UID)
		}
		n.awaitEnd(inner, uids, time.Duration(g.ShutdownGracePeriodSeconds)*time.Second)
	}
	return nil
}

// awaitEnd waits until the pods have ended, and that is written, or the time is over.
func (n *node) awaitEnd(ctx context.Context, uids []types.UID, most time.Duration) {
	timer := n.Clock.NewTimer(most)
	defer timer.Stop()
	for {
		eased := n.easing()
		if !slices.ContainsFunc(uids, n.runs) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			return
		case <-eased:
		}
	}
}

// runs says whether the pod has not ended yet.
func (n *node) runs(uid types.UID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	w := n.workers[uid]
	return w != nil && w.counted
}

// staying refuses pods on a node that shuts down.
func (n *node) staying() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leaving {
		return &rejection{"NodeShutdown", shutdownRefusal}
	}
	return nil
}
