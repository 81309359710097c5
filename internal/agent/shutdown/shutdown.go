// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package shutdown implements the graceful node shutdown: if the kubelet configuration requires it, all pods end before the node does, one
// priority group after the other, each within its own time.
package shutdown

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// kubelet's messages about a node that shuts down.
const (
	refusal = "Pod was rejected as the node is shutting down."
	message = "Pod was terminated in response to imminent node shutdown."
)

// systemCritical is the minimum priority of critical pods.
const systemCritical = 2_000_000_000

// groups returns the priority groups in the order in which they end, the lowest first, with their times; none if pods keep running.
func groups(k *configv1beta1.KubeletConfiguration) []configv1beta1.ShutdownGracePeriodByPodPriority {
	all, critical := k.ShutdownGracePeriod.Duration, k.ShutdownGracePeriodCriticalPods.Duration
	out := slices.Clone(k.ShutdownGracePeriodByPodPriority)
	if len(out) == 0 && all > 0 {
		out = []configv1beta1.ShutdownGracePeriodByPodPriority{
			{Priority: 0, ShutdownGracePeriodSeconds: int64((all - critical) / time.Second)},
			{Priority: systemCritical, ShutdownGracePeriodSeconds: int64(critical / time.Second)},
		}
	}
	slices.SortFunc(out, func(a, b configv1beta1.ShutdownGracePeriodByPodPriority) int {
		return cmp.Compare(a.Priority, b.Priority)
	})
	return out
}

// groupOf returns the group of a priority: the highest one that is not above it, or the lowest.
func groupOf(groups []configv1beta1.ShutdownGracePeriodByPodPriority, priority int32) int {
	at := 0
	for i, g := range groups {
		if g.Priority <= priority {
			at = i
		}
	}
	return at
}

// Pods are the pods of the node.
type Pods interface {
	// ActivePods returns the pods that run or are about to, without those that are being ended. The caller must not change them.
	ActivePods() []*corev1.Pod
}

// Killer ends pods.
type Killer interface {
	// KillPod ends the pod with the reason and the message in its status, unless it is being ended already.
	KillPod(pod types.UID, end podspec.End)
	// Alive reports whether the pod has not ended yet.
	Alive(pod types.UID) bool
	// Killed returns a channel that is closed when the next killed pod has ended.
	Killed() <-chan struct{}
}

// Status sets the node to not ready.
type Status interface {
	SetShuttingDown()
}

// Config configures a Manager. All fields but Metrics are required.
type Config struct {
	Pods    Pods
	Killer  Killer
	Status  Status
	Kubelet *configv1beta1.KubeletConfiguration
	Clock   clock.WithTicker
	Logger  *slog.Logger
	Metrics *Metrics // nil: none
}

// Metrics are kubelet's metrics of the graceful shutdown.
type Metrics struct{ start, end prometheus.Gauge }

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Subsystem: "kubelet", Name: name, Help: help})
	}
	return &Metrics{
		gauge("graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds"),
		gauge("graceful_shutdown_end_time_seconds", "Last graceful shutdown end time since unix epoch in seconds"),
	}
}

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector { return []prometheus.Collector{m.start, m.end} }

// Manager ends the node's pods before the node ends.
type Manager struct {
	Config
	shuttingDown atomic.Bool
}

// New makes the manager; Run does its work.
func New(c Config) *Manager { return &Manager{Config: c} }

// Outlast returns a context that ends after its parent, when the pods have ended, if the configuration requires that; otherwise it ends
// with its parent. Cancel releases it.
func Outlast(ctx context.Context, k *configv1beta1.KubeletConfiguration) (inner context.Context, cancel context.CancelFunc) {
	if len(groups(k)) == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithCancel(context.WithoutCancel(ctx))
}

// ShuttingDown reports whether the node shuts down.
func (m *Manager) ShuttingDown() bool { return m.shuttingDown.Load() }

// Refusal returns why a node that shuts down accepts no pods; empty: it accepts them.
func (m *Manager) Refusal() string {
	if m.ShuttingDown() {
		return refusal
	}
	return ""
}

// Run ends the node's pods, group by group, after outer is done, and then the node itself by cancel.
func (m *Manager) Run(outer, inner context.Context, cancel context.CancelFunc) error {
	all := groups(m.Kubelet)
	if len(all) == 0 {
		return nil
	}
	select {
	case <-inner.Done():
		return nil
	case <-outer.Done():
	}
	defer cancel()
	if m.Metrics != nil {
		m.Metrics.start.Set(float64(m.Clock.Now().Unix()))
		defer func() { m.Metrics.end.Set(float64(m.Clock.Now().Unix())) }()
	}
	m.shuttingDown.Store(true)
	m.Status.SetShuttingDown()
	m.Logger.Info("Node is shutting down, ending its pods")
	for i, g := range all {
		var uids []types.UID
		for _, pod := range m.Pods.ActivePods() {
			if groupOf(all, corev1helpers.PodPriority(pod)) != i {
				continue
			}
			seconds := g.ShutdownGracePeriodSeconds
			if own := pod.Spec.TerminationGracePeriodSeconds; own != nil {
				seconds = min(seconds, *own)
			}
			m.Killer.KillPod(pod.UID, podspec.End{Reason: "Terminated", Message: message, Grace: seconds, Disruption: message})
			uids = append(uids, pod.UID)
		}
		m.awaitEnd(inner, uids, time.Duration(g.ShutdownGracePeriodSeconds)*time.Second)
	}
	return nil
}

// awaitEnd waits until the pods have ended with a written status, or the time is over.
func (m *Manager) awaitEnd(ctx context.Context, uids []types.UID, most time.Duration) {
	timer := m.Clock.NewTimer(most)
	defer timer.Stop()
	for {
		eased := m.Killer.Killed()
		if !slices.ContainsFunc(uids, m.Killer.Alive) {
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
