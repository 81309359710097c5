// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podadmission is the node's last guard against pods that it cannot run, as kubelet's admission of pods is: two schedulers may have
// raced for the same room, a pod may name its node itself, and a pod may ask for what the node or its runtime does not know.
//
//	podadmission.go  the Manager, and its checks in kubelet's order
//	predicates.go    whether the pod fits the Node beside the other pods
//	preemption.go    which pods a critical pod displaces
//
// Reasons and messages are kubelet's. The package decides; it has neither clock nor client.
package podadmission

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/tools/record"
	ndf "k8s.io/component-helpers/nodedeclaredfeatures"

	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/sysctls"
)

// Rejection is the refusal of a pod, for good: the pod fails with the reason and the message in its status.
type Rejection struct{ Reason, Message string }

// StatusMessage returns the message in the pod's status.
func (r *Rejection) StatusMessage() string { return "Pod was rejected: " + r.Message }

// Error implements error.
func (r *Rejection) Error() string { return r.Reason + ": " + r.Message }

// Pods are the pods of the node.
type Pods interface {
	// AdmittedPods are the pods that count and have not ended, also those that are being ended, but not those that the API server no
	// longer has. They must not be changed.
	AdmittedPods() []*corev1.Pod
	// CountPod takes the pod's requests from the node until the pod has ended.
	CountPod(pod types.UID)
}

// Node is the Node object.
type Node interface {
	// Node is the newest Node that the API server has shown; until it has shown one, the Node as it will be registered. It must not be
	// changed.
	Node() *corev1.Node
	// FetchNode gets the Node from the API server.
	FetchNode(ctx context.Context) (*corev1.Node, error)
}

// Killer ends pods.
type Killer interface {
	// KillPod ends the pod with the reason and the message in its status, unless it is being ended already.
	KillPod(pod types.UID, end podspec.End)
	// AwaitEnd waits until the pods have ended. It waits for no longer than the grace of each, and half of it again.
	AwaitEnd(ctx context.Context, pods []*corev1.Pod) error
}

// Shutdown is the end of the whole node.
type Shutdown interface {
	// Refusal is why no pod may come; empty: pods may.
	Refusal() string
}

// Eviction is how pods make room when the node runs short.
type Eviction interface {
	// Refusal is why the pod may not come; empty: it may.
	Refusal(pod *corev1.Pod) string
}

// Config is what a Manager is made from. All of it is required but Features, which may be empty.
type Config struct {
	Pods     Pods
	Node     Node
	Killer   Killer
	Shutdown Shutdown
	Eviction Eviction
	Sysctls  *sysctls.List
	AppArmor bool     // the kernel enforces AppArmor profiles
	Features []string // that the node declares
	Events   record.EventRecorder
	Metrics  *Metrics
}

// Manager admits pods, one after another, so that each counts for the next.
type Manager struct {
	Config
	mu sync.Mutex // held from the count of the other pods until the pod itself is counted
}

// New makes the manager.
func New(c Config) *Manager { return &Manager{Config: c} }

// Admit admits a pod, and counts it, or returns a *Rejection. For a critical pod it ends others, and waits for their end.
func (m *Manager) Admit(ctx context.Context, pod *corev1.Pod) error {
	err := m.Resize(ctx, pod)
	if reject, is := err.(*Rejection); is {
		m.Metrics.reject(reject.Reason)
	}
	return err
}

// Resize is Admit for a pod that was admitted before and is to have other resources.
func (m *Manager) Resize(ctx context.Context, pod *corev1.Pod) error {
	node := m.Node.Node()
	victims, refusals := m.check(pod, node)
	if affinityOnly(refusals) {
		// The Node may have got its labels after this one was shown.
		if fetched, err := m.Node.FetchNode(ctx); err == nil {
			victims, refusals = m.check(pod, fetched)
		} else if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if len(refusals) > 0 {
		return refusals[0].rejection()
	}
	return m.preempt(ctx, victims)
}

// check runs all checks in kubelet's order. A pod without refusals is counted, and may come when the victims have ended.
func (m *Manager) check(pod *corev1.Pod, node *corev1.Node) (*victims, []refusal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := func(reason, message string) (*victims, []refusal) {
		return nil, []refusal{{reason: reason, message: message}}
	}
	if why := m.Eviction.Refusal(pod); why != "" {
		return one(evict.Reason, why)
	}
	if err := m.Sysctls.Check(pod); err != nil {
		return one("SysctlForbidden", err.Error())
	}
	if reason, message := incapable(pod, node); reason != "" {
		return one(reason, message)
	}
	victims, refusals := m.fit(pod, node)
	if len(refusals) > 0 {
		return nil, refusals
	}
	if pending(pod) && !m.AppArmor && confined(pod) {
		return one("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")
	}
	if message := m.undeclared(pod); message != "" {
		return one("PodFeatureUnsupported", message)
	}
	if why := m.Shutdown.Refusal(); why != "" {
		return one("NodeShutdown", why)
	}
	m.Pods.CountPod(pod.UID)
	return victims, nil
}

// incapable is why the node cannot run the pod whatever else runs there; empty: it can.
func incapable(pod *corev1.Pod, node *corev1.Node) (reason, message string) {
	if os, asks := pod.Labels[corev1.LabelOSStable]; asks && os != runtime.GOOS {
		return "PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"
	}
	if os := pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return "PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"
	}
	features := node.Status.Features
	able := features != nil && features.SupplementalGroupsPolicy != nil && *features.SupplementalGroupsPolicy
	if sc := pod.Spec.SecurityContext; !able && sc != nil && sc.SupplementalGroupsPolicy != nil &&
		*sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return "SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"
	}
	return "", ""
}

// pending says whether no container of the pod has been started yet.
func pending(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
}

// confined says whether a pod asks for a profile of AppArmor.
func confined(pod *corev1.Pod) bool {
	asks := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if sc := pod.Spec.SecurityContext; sc != nil && asks(sc.AppArmorProfile) {
		return true
	}
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return c.SecurityContext != nil && asks(c.SecurityContext.AppArmorProfile)
	})
}

// release is the version whose features nodes have to declare.
var release = version.MajorMinor(1, 37)

// undeclared is a message about the features that the pod needs and the node does not declare; empty: there are none.
func (m *Manager) undeclared(pod *corev1.Pod) string {
	needs, err := ndf.DefaultFramework.InferForPodScheduling(&ndf.PodInfo{Spec: &pod.Spec, Status: &pod.Status}, release)
	if err != nil {
		return "Failed to infer pod's feature requirements: " + err.Error()
	}
	match, err := ndf.DefaultFramework.MatchNodeFeatureSet(needs, ndf.DefaultFramework.TryMap(m.Features))
	switch {
	case err != nil:
		return "Failed to match pod's feature requirements against the node: " + err.Error()
	case !match.IsMatch:
		return "Pod requires node features that are not available: " + strings.Join(match.UnsatisfiedRequirements, ", ")
	}
	return ""
}

// Metrics are what the manager counts.
type Metrics struct {
	rejections  *prometheus.CounterVec
	preemptions *prometheus.CounterVec
}

// NewMetrics makes the metrics, under kubelet's names.
func NewMetrics() *Metrics {
	return &Metrics{
		rejections: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "admission_rejections_total", Help: "Cumulative number pod admission rejections by the Kubelet.",
		}, []string{"reason"}),
		preemptions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "kubelet", Name: "preemptions", Help: "Cumulative number of pod preemptions by preemption resource",
		}, []string{"preemption_signal"}),
	}
}

// Collectors are the metrics, to be registered.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.rejections, m.preemptions}
}

// reject counts a rejection. Reasons that pods can make up count as one.
func (m *Metrics) reject(reason string) {
	known := []string{
		"AppArmor", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "SupplementalGroupsPolicyNotSupported",
		"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods", "PodFeatureUnsupported", evict.Reason,
		"SysctlForbidden", "NodeShutdown",
	}
	switch {
	case slices.Contains(known, reason):
	case strings.HasPrefix(reason, outOf):
		reason = "OutOfExtendedResources"
	default:
		reason = "Other"
	}
	m.rejections.WithLabelValues(reason).Inc()
}
