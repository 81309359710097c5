// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodestatus maintains the Node object: its registration, conditions, addresses and Lease, and the configuration of the pod network
// for the Node's podCIDRs.
//
//	nodestatus.go  the Manager and the conditions of the Node
//	object.go      the Node: the API server's version, and the node's changes to it
//	register.go    registration and the heartbeat
//	lease.go       the lease
//	metrics.go     how long a new node took to start
//	patch.go       writes the changes of the Node
//	network.go     the pod network
//
// Other rooms report pressure and shutdown to it; it reads the node's addresses and images.
package nodestatus

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/cri"
)

// leaseNamespace is the namespace of the node's Lease.
const leaseNamespace = "kube-node-lease"

// shutdownReason is kubelet's message of a node that shuts down.
const shutdownReason = "node is shutting down"

// The delays between attempts to register.
const (
	firstWait   = time.Second / 4
	longestWait = 10 * time.Second
)

// Addresses are the addresses at which clients reach the node.
type Addresses interface {
	// Texts returns the current addresses, the primary one first.
	Texts() []string
}

// Images are the images on the node, for the scheduler's image locality.
type Images interface {
	// List returns nil if the runtime does not report its images.
	List(ctx context.Context) []corev1.ContainerImage
}

// Plugins are the extended resources of plug-ins of the node.
type Plugins interface {
	// Capacity returns the amounts. A plug-in that is gone has zero of its resource.
	Capacity() (capacity, allocatable corev1.ResourceList)
}

// Record is what the node has on disk of plug-ins' resources.
type Record interface {
	// Missing reports whether there was none when the node started, and Begin has not made one since.
	Missing() bool
	// Begin makes the record.
	Begin() error
}

// Volumes are the node's volumes that are attached.
type Volumes interface {
	// InUse returns the volumes that the node uses, in a stable order.
	InUse() []corev1.UniqueVolumeName
	// Saw notes a newer Node. It must not block.
	Saw(node *corev1.Node)
}

// Cloud is the node's part of the contract with a cloud's controller manager, and the machine's place in its network.
type Cloud struct {
	External bool      // it initializes the node, and sets its addresses
	Given    bool      // the node's addresses are configured: it has to confirm them
	Outside  Addresses // at which the network reaches the machine, if the node's addresses are out of reach there; nil: they are not
}

// Config configures a Manager. Labels, TLS, Port and PodCIDR may be empty.
type Config struct {
	Client    kubernetes.Interface
	Runtime   *cri.Client
	Addresses Addresses
	Images    Images
	Kubelet   *configv1beta1.KubeletConfiguration
	Clock     clock.WithTicker
	Logger    *slog.Logger

	NodeName  string
	Labels    map[string]string // beside the well-known ones
	TLS       *tls.Config       // of the node's API
	Port      int32             // of the node's API
	Resources allocatable.Node
	// Volumes says which volumes are in use; nil: none are.
	Volumes Volumes
	// Plugins add extended resources; nil: none do.
	Plugins Plugins
	// Record is of their resources. While it is missing, a registration sets all extended resources of plug-ins that have not registered to
	// zero. nil: extended resources stay.
	Record Record

	Metrics *Metrics // nil: none

	// Cloud is the contract with a cloud's controller manager.
	Cloud Cloud

	// Network configures the pod network for PodCIDR or, if that is empty, for the Node's podCIDRs. The directory "-" means no configuration.
	Network cni.Options
	PodCIDR string
}

// Manager maintains the Node object, its conditions and its Lease.
type Manager struct {
	Config
	changed chan struct{} // signals that the node's conditions may have changed
	lease   *lease
	pods    *podNetwork

	mu           sync.Mutex
	newest       *corev1.Node // from the informer
	ready        readiness
	pressure     []corev1.NodeConditionType
	leaving      bool                         // the node shuts down
	listed       []corev1.ContainerImage      // the node's images
	handlers     []corev1.NodeRuntimeHandler  // of the runtime
	able         []*runtimeapi.RuntimeHandler // the same, as the runtime reports them
	strictGroups bool                         // the runtime supports SupplementalGroupsPolicy
}

// New makes the manager of the node's status.
func New(c Config) *Manager {
	return &Manager{
		Config: c, changed: make(chan struct{}, 1),
		pods:  &podNetwork{options: c.Network, fixed: c.PodCIDR, clock: c.Clock, logger: c.Logger},
		lease: &lease{client: c.Client, clock: c.Clock, node: c.NodeName, seconds: c.Kubelet.NodeLeaseDurationSeconds},
	}
}

// Resync makes the heartbeat query the runtime and write the status now.
func (m *Manager) Resync() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// SetPressure sets the pressure conditions. The caller must not change the list afterwards.
func (m *Manager) SetPressure(conditions []corev1.NodeConditionType) {
	m.mu.Lock()
	same := slices.Equal(m.pressure, conditions)
	m.pressure = conditions
	m.mu.Unlock()
	if !same {
		m.Resync()
	}
}

// SetShuttingDown sets the node to not ready, because it shuts down.
func (m *Manager) SetShuttingDown() {
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	m.Resync()
}

// RuntimeHandlers returns the handlers that the runtime last reported. The caller must not change them.
func (m *Manager) RuntimeHandlers() []*runtimeapi.RuntimeHandler {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.able
}

// readiness has the reasons why the node is not ready; empty: it is ready.
type readiness struct {
	reason    string
	unplugged bool // the runtime reports no network
}

// setConditions determines the conditions from the machine and the runtime.
func (m *Manager) setConditions(s *corev1.NodeStatus) {
	now := metav1.NewTime(m.Clock.Now()).Rfc3339Copy()
	set := func(t corev1.NodeConditionType, status bool, yesReason, yesMessage, noReason, noMessage string) {
		c := corev1.NodeCondition{
			Type: t, Status: corev1.ConditionFalse, Reason: noReason, Message: noMessage, LastHeartbeatTime: now, LastTransitionTime: now,
		}
		if status {
			c.Status, c.Reason, c.Message = corev1.ConditionTrue, yesReason, yesMessage
		}
		for i := range s.Conditions {
			if s.Conditions[i].Type == t {
				if s.Conditions[i].Status == c.Status {
					c.LastTransitionTime = s.Conditions[i].LastTransitionTime
				}
				s.Conditions[i] = c
				return
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	m.mu.Lock()
	short := m.pressure
	m.mu.Unlock()
	set(corev1.NodeMemoryPressure, slices.Contains(short, corev1.NodeMemoryPressure),
		"KubeletHasInsufficientMemory", "kubelet has insufficient memory available",
		"KubeletHasSufficientMemory", "kubelet has sufficient memory available")
	set(corev1.NodeDiskPressure, slices.Contains(short, corev1.NodeDiskPressure),
		"KubeletHasDiskPressure", "kubelet has disk pressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
	set(corev1.NodePIDPressure, slices.Contains(short, corev1.NodePIDPressure),
		"KubeletHasInsufficientPID", "kubelet has insufficient PID available", "KubeletHasSufficientPID", "kubelet has sufficient PID available")
	m.mu.Lock()
	why := m.ready.reason
	if m.leaving {
		why = shutdownReason
	}
	m.mu.Unlock()
	if slices.ContainsFunc(s.Conditions, func(c corev1.NodeCondition) bool { return c.Type == v1alpha1.FencedCondition }) {
		set(v1alpha1.FencedCondition, false, "", "", "NodeRuns", "the node runs")
	}
	set(corev1.NodeReady, why == "", "KubeletReady", "kubelet is posting ready status", "KubeletNotReady", why)
}

// CheckRuntime determines whether the runtime and its network are ready. It returns whether that has changed.
func (m *Manager) CheckRuntime(ctx context.Context) bool {
	var problems []string
	unplugged := false
	resp, err := m.Runtime.Runtime.Status(cri.Quiet(ctx), false)
	if ctx.Err() != nil {
		return false
	}
	switch {
	case err != nil:
		problems = append(problems, "container runtime status check may not have completed yet: "+cri.Message(err))
	default:
		seen := map[string]*runtimeapi.RuntimeCondition{}
		for _, c := range resp.GetStatus().GetConditions() {
			seen[c.Type] = c
		}
		for _, want := range []struct{ kind, text string }{
			{runtimeapi.RuntimeReady, "container runtime not ready"}, {runtimeapi.NetworkReady, "container runtime network not ready"},
		} {
			switch c := seen[want.kind]; {
			case c == nil:
				problems = append(problems, fmt.Sprintf("%s: %s not reported", want.text, want.kind))
			case !c.Status:
				unplugged = unplugged || want.kind == runtimeapi.NetworkReady
				problems = append(problems, fmt.Sprintf("%s: %s=false reason:%s message:%s", want.text, c.Type, c.Reason, c.Message))
			}
		}
	}
	if m.pods.wantsRange() {
		problems = append(problems, "container runtime network not ready: the node has no podCIDR yet")
	}
	images := m.Images.List(ctx)
	why := strings.Join(problems, ", ")
	m.mu.Lock()
	defer m.mu.Unlock()
	if images != nil {
		m.listed = images
	}
	if err == nil {
		m.handlers, m.able, m.strictGroups = nil, resp.GetRuntimeHandlers(), resp.GetFeatures().GetSupplementalGroupsPolicy()
		for _, h := range m.able {
			// Recursive read-only mounts need support of the node, whatever the runtime supports.
			m.handlers = append(m.handlers, corev1.NodeRuntimeHandler{Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: new(false), UserNamespaces: new(h.GetFeatures().GetUserNamespaces()),
			}})
		}
	}
	changed := m.ready.reason != why
	m.ready.reason, m.ready.unplugged = why, unplugged
	return changed
}

// NetworkReady reports whether pods with their own network can start.
func (m *Manager) NetworkReady() (bool, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ready.reason == "", m.ready.reason
}
