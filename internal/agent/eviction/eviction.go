// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package eviction evicts pods when the node runs short of memory, disk or process IDs, as kubelet's eviction manager does. Package evict,
// which is pure, decides; a Meter measures; and the Manager acts on the decisions: it reclaims disk space, and kills pods one at a time.
package eviction

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// The interval between measurements, and how long the manager waits for an evicted pod before it evicts another one.
const (
	evictionPeriod = 10 * time.Second
	evictionWait   = 30 * time.Second
)

// Pods are the pods of the node.
type Pods interface {
	// ActivePods returns the pods that run or are about to, without those that are being ended, the oldest first. The caller must not change
	// them.
	ActivePods() []*corev1.Pod
}

// Containers are the containers of the node.
type Containers interface {
	// DeleteDeadContainers removes the containers of ended pods.
	DeleteDeadContainers(ctx context.Context) error
}

// Killer ends pods.
type Killer interface {
	// KillPod ends the pod with the reason and the message in its status, unless it is being ended already.
	KillPod(pod types.UID, end podspec.End)
	// Killing reports whether a pod that was killed within the given time is still there.
	Killing(within time.Duration) bool
	// Killed returns a channel that is closed when the next killed pod has ended.
	Killed() <-chan struct{}
}

// Images are the node's images.
type Images interface {
	DeleteUnused(ctx context.Context) error
}

// Status publishes the pressure conditions.
type Status interface {
	SetPressure(conditions []corev1.NodeConditionType)
}

// Shutdown is the graceful shutdown of the node, during which no pod is evicted.
type Shutdown interface {
	ShuttingDown() bool
}

// Config configures a Manager. All fields are required.
type Config struct {
	Pods       Pods
	Containers Containers
	Killer     Killer
	Images     Images
	Status     Status
	Shutdown   Shutdown
	Meter      *Meter
	// Measure returns observations of all signals.
	Measure func(ctx context.Context) evict.Observations

	Kubelet    *configv1beta1.KubeletConfiguration
	Thresholds []evict.Threshold
	Node       *corev1.ObjectReference // the object of events that do not belong to a pod
	Events     record.EventRecorder
	Evictions  *prometheus.CounterVec // by the signal
	Clock      clock.WithTicker
	Logger     *slog.Logger
}

// Manager evicts pods when the node runs short, and refuses pods that would make it worse.
type Manager struct {
	Config

	mu         sync.Mutex
	conditions []corev1.NodeConditionType

	// The failures of reclaims and searches that repeat while the node runs short.
	containers, images, victims backoff.Failures
}

// New makes the manager; Run does its work.
func New(c Config) *Manager { return &Manager{Config: c} }

// Run measures until ctx is done, and reclaims resources that run short: dead containers and images first, then pods, one at a time.
func (m *Manager) Run(ctx context.Context) error {
	if len(m.Thresholds) == 0 && !*m.Kubelet.LocalStorageCapacityIsolation {
		return nil
	}
	core := &evict.Manager{
		Thresholds: m.Thresholds, Transition: m.Kubelet.EvictionPressureTransitionPeriod.Duration,
		MaxGrace: int64(m.Kubelet.EvictionMaxPodGracePeriod), ImageFS: m.Meter.imagesApart(ctx),
	}
	ticker := m.Clock.NewTicker(evictionPeriod)
	defer ticker.Stop()
	for {
		eased := m.Killer.Killed()
		m.relieve(ctx, core)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-eased:
		}
	}
}

// relieve measures once, and acts.
func (m *Manager) relieve(ctx context.Context, core *evict.Manager) {
	seen := m.Measure(ctx)
	step := core.Next(m.Clock.Now(), seen)
	m.mu.Lock()
	m.conditions = step.Conditions
	m.mu.Unlock()
	m.Status.SetPressure(step.Conditions)
	if m.Shutdown.ShuttingDown() || m.Killer.Killing(evictionWait) {
		return // the effect is not measured yet, or all pods are being ended
	}
	if *m.Kubelet.LocalStorageCapacityIsolation {
		limited := slices.DeleteFunc(m.Pods.ActivePods(), func(p *corev1.Pod) bool { return !evict.Limited(p) })
		if over := core.OverLimit(m.Meter.usage(ctx, limited)); len(over) > 0 {
			for _, e := range over {
				m.evict(e)
			}
			return
		}
	}
	if step.Starved == nil {
		m.victims.Clear()
		return
	}
	m.Events.Eventf(m.Node, corev1.EventTypeWarning, "EvictionThresholdMet", "Attempting to reclaim %s", step.Starved.Resource)
	if step.Starved.Disk {
		m.freeDisk(ctx)
		if core.Enough(m.Measure(ctx)) {
			return
		}
	}
	victims := core.Victims(step.Starved, m.Meter.usage(ctx, m.Pods.ActivePods()))
	if len(victims) == 0 {
		m.victims.Log(m.Clock.Now(), m.Logger.Warn, "Node is short of a resource and has no pod to evict",
			"resource", step.Starved.Resource)
		return
	}
	m.victims.Clear()
	m.evict(victims[0])
}

// freeDisk removes unused data: dead containers of ended pods, and images.
func (m *Manager) freeDisk(ctx context.Context) {
	switch err := m.Containers.DeleteDeadContainers(ctx); {
	case err == nil:
		m.containers.Clear()
	case ctx.Err() == nil:
		m.containers.Log(m.Clock.Now(), m.Logger.Warn, "Could not remove dead containers", "err", err)
	}
	switch err := m.Images.DeleteUnused(ctx); {
	case err == nil:
		m.images.Clear()
	case ctx.Err() == nil:
		m.images.Log(m.Clock.Now(), m.Logger.Warn, "Could not collect images", "err", err)
	}
}

// evict makes the pod's worker end it.
func (m *Manager) evict(e evict.Eviction) {
	m.Logger.Warn("Evicting a pod", "pod", podspec.Describe(e.Pod), "why", e.Message)
	m.Events.AnnotatedEventf(e.Pod, e.Annotations, corev1.EventTypeWarning, evict.Reason, "%s", e.Message)
	m.Evictions.WithLabelValues(string(e.Signal)).Inc()
	end := podspec.End{Reason: evict.Reason, Message: e.Message, Grace: e.Grace}
	if e.Disrupted {
		end.Disruption = e.Message
	}
	m.Killer.KillPod(e.Pod.UID, end)
}

// Refusal returns why the node does not accept the pod under the current pressure; empty: it does. It accepts critical pods, and under
// memory pressure pods that request memory.
func (m *Manager) Refusal(pod *corev1.Pod) string {
	m.mu.Lock()
	conditions := m.conditions
	m.mu.Unlock()
	if len(conditions) == 0 || podspec.IsCritical(pod) {
		return ""
	}
	if slices.Equal(conditions, []corev1.NodeConditionType{corev1.NodeMemoryPressure}) {
		taint := &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if podstatus.QOS(pod) != corev1.PodQOSBestEffort ||
			corev1helpers.TolerationsTolerateTaint(klog.Logger{}, pod.Spec.Tolerations, taint, false) {
			return ""
		}
	}
	return fmt.Sprintf("The node had condition: %v. ", conditions)
}
