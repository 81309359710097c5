// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podadmission checks a pod before the node runs it, as kubelet's admission handlers do: two schedulers may have used the same
// resources, a pod may name its node itself, and a pod may require features that the node or its runtime lacks.
//
//	podadmission.go  the Manager, and its checks in kubelet's order
//	predicates.go    whether the pod fits the Node beside the other pods
//	preemption.go    which pods a critical pod preempts
//
// Reasons and messages are kubelet's. The package only decides; it has neither clock nor client.
package podadmission

import (
	"context"
	"errors"
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

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/podfit"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/sysctls"
)

// Rejection is a final rejection: the pod fails with the reason and the message in its status.
type Rejection = podfit.Rejection

// Pods are the pods of the node.
type Pods interface {
	// AdmittedPods returns the counted pods that have not ended, including those that are being ended, but without those that the API server
	// no longer has. The caller must not change them.
	AdmittedPods() []*corev1.Pod
	// CountPod counts the pod's requests against the node until the pod has ended.
	CountPod(pod types.UID)
}

// Node is the Node object.
type Node interface {
	// Node returns the newest Node that the API server has shown; before the first one, the Node as it will be registered. The caller must not
	// change it.
	Node() *corev1.Node
	// FetchNode reads the Node from the API server.
	FetchNode(ctx context.Context) (*corev1.Node, error)
}

// Killer ends pods.
type Killer interface {
	// KillPod ends the pod with the reason and the message in its status, unless it is being ended already.
	KillPod(pod types.UID, end podspec.End)
	// AwaitEnd waits until the pods have ended, at most for 1.5 times the longest grace period.
	AwaitEnd(ctx context.Context, pods []*corev1.Pod) error
}

// Shutdown is the graceful shutdown of the node.
type Shutdown interface {
	// Refusal returns why the node accepts no pods; empty: it accepts them.
	Refusal() string
}

// Eviction is the node-pressure eviction.
type Eviction interface {
	// Refusal returns why the node does not accept the pod; empty: it does.
	Refusal(pod *corev1.Pod) string
}

// Resources are the node's resources beyond cgroup limits: devices, exclusive CPUs and the like.
type Resources interface {
	// Admit allocates the pod's resources. It may return a *containermanager.Rejection or a *containermanager.Hold.
	Admit(ctx context.Context, pod *corev1.Pod) error
	// Resize is like Admit for an admitted pod whose resources are to change.
	Resize(ctx context.Context, pod *corev1.Pod) error
	// Allocated returns how much of each extended resource pods have.
	Allocated() map[corev1.ResourceName]int64
}

// Config configures a Manager. All fields but Features and Resources are required.
type Config struct {
	Pods      Pods
	Node      Node
	Killer    Killer
	Shutdown  Shutdown
	Eviction  Eviction
	Sysctls   *sysctls.List
	Resources Resources // nil: none
	AppArmor  bool      // the kernel enforces AppArmor profiles
	Features  []string  // that the node declares
	Events    record.EventRecorder
	Metrics   *Metrics
}

// Manager admits pods one after another, so that each counts for the next.
type Manager struct {
	Config
	mu sync.Mutex // held from counting the other pods until the pod itself is counted
}

// New makes the manager.
func New(c Config) *Manager { return &Manager{Config: c} }

// Admit admits and counts a pod, or returns a *Rejection, or a *containermanager.Hold for a pod that has to wait. For a critical pod it
// preempts others, and waits for their end.
func (m *Manager) Admit(ctx context.Context, pod *corev1.Pod) error {
	err := m.admit(ctx, pod, Resources.Admit)
	if reject, is := err.(*Rejection); is {
		m.Metrics.reject(reject.Reason)
	}
	return err
}

// Resize is like Admit for an admitted pod whose resources are to change.
func (m *Manager) Resize(ctx context.Context, pod *corev1.Pod) error {
	return m.admit(ctx, pod, Resources.Resize)
}

// allocate is a method of Resources.
type allocate = func(from Resources, ctx context.Context, pod *corev1.Pod) error

func (m *Manager) admit(ctx context.Context, pod *corev1.Pod, allocate allocate) error {
	if against := m.forbids(pod); against != nil {
		return against.rejection()
	}
	if err := m.allocate(ctx, pod, allocate); err != nil {
		return err
	}
	node := m.Node.Node()
	victims, refusals := m.check(pod, node)
	if affinityOnly(refusals) {
		// The Node may have been labeled after this version.
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

// allocate allocates the pod's resources. It comes before all checks but eviction and sysctls, and holds no lock: a plug-in that is slow
// delays the pods that use it, and no others.
func (m *Manager) allocate(ctx context.Context, pod *corev1.Pod, allocate allocate) error {
	if m.Resources == nil {
		return nil
	}
	err := allocate(m.Resources, ctx, pod)
	if reject := (*containermanager.Rejection)(nil); errors.As(err, &reject) {
		return &Rejection{Reason: reject.Reason, Message: reject.Message}
	}
	return err
}

// forbids returns why the node takes no such pod now, whatever resources it has left; nil: it does.
func (m *Manager) forbids(pod *corev1.Pod) *refusal {
	if why := m.Eviction.Refusal(pod); why != "" {
		return &refusal{reason: evict.Reason, message: why}
	}
	if err := m.Sysctls.Check(pod); err != nil {
		return &refusal{reason: "SysctlForbidden", message: err.Error()}
	}
	return nil
}

// check runs the checks that come after the allocation, in kubelet's order. It counts a pod without refusals, which may start when the
// victims have ended.
func (m *Manager) check(pod *corev1.Pod, node *corev1.Node) (*victims, []refusal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := func(reason, message string) (*victims, []refusal) {
		return nil, []refusal{{reason: reason, message: message}}
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

// incapable returns why the node cannot run the pod, regardless of the other pods; an empty reason means it can.
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

// pending reports whether no container of the pod has started yet.
func pending(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
}

// confined reports whether a pod requests an AppArmor profile.
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

// release is the version whose features nodes must declare.
var release = version.MajorMinor(1, 37)

// undeclared returns a message about features that the pod requires and the node does not declare; empty: there are none.
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

// Metrics are the metrics of the manager.
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

// Collectors returns the metrics for registration.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{m.rejections, m.preemptions}
}

// reject counts a rejection. Reasons that a pod can influence count as one.
func (m *Metrics) reject(reason string) {
	known := []string{
		"AppArmor", "PodOSSelectorNodeLabelDoesNotMatch", "PodOSNotSupported", "SupplementalGroupsPolicyNotSupported",
		"UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfephemeral-storage", "OutOfpods", "PodFeatureUnsupported", evict.Reason,
		"SysctlForbidden", "NodeShutdown", "TopologyAffinityError", "SMTAlignmentError",
	}
	switch {
	case slices.Contains(known, reason):
	case strings.HasPrefix(reason, podfit.OutOf):
		reason = "OutOfExtendedResources"
	default:
		reason = "Other"
	}
	m.rejections.WithLabelValues(reason).Inc()
}
