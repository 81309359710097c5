// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podadmission is the node's last guard against pods that it cannot run, as kubelet's admission of pods is: two schedulers may have
// raced for the same room, and a pod may ask for what the node or its runtime does not know.
package podadmission

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/sysctls"
)

// Rejection is the refusal of a pod, for good: the pod fails with the reason and the message in its status.
type Rejection struct{ Reason, Message string }

// Error implements error.
func (r *Rejection) Error() string { return r.Reason + ": " + r.Message }

// Pods are the pods of the node.
type Pods interface {
	// CountedPods are the pods whose requests are taken from the node. They must not be changed.
	CountedPods() []*corev1.Pod
}

// Status is what the node says of itself.
type Status interface {
	Node() *corev1.Node
	SupplementalGroupsPolicy() bool
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

// Config is what a Manager is made from. All of it is required.
type Config struct {
	Pods      Pods
	Status    Status
	Shutdown  Shutdown
	Eviction  Eviction
	Sysctls   *sysctls.List
	Resources allocatable.Node
}

// Manager admits pods. It keeps nothing but its configuration.
type Manager struct{ Config }

// New makes the manager.
func New(c Config) *Manager { return &Manager{c} }

// Admit returns a *Rejection for a pod that the node cannot run.
func (m *Manager) Admit(pod *corev1.Pod) error {
	if err := m.capable(pod); err != nil {
		return err
	}
	if why := m.Shutdown.Refusal(); why != "" {
		return &Rejection{"NodeShutdown", why}
	}
	if why := m.Eviction.Refusal(pod); why != "" {
		return &Rejection{evict.Reason, why}
	}
	if err := m.Sysctls.Check(pod); err != nil {
		return &Rejection{"SysctlForbidden", err.Error()}
	}
	return m.Fits(pod)
}

// capable refuses pods that ask for what this node or its runtime does not know: they would run, with less than they asked for.
func (m *Manager) capable(pod *corev1.Pod) error {
	if os := pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &Rejection{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	strict := m.Status.SupplementalGroupsPolicy()
	sc := pod.Spec.SecurityContext
	if !strict && sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return &Rejection{"SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"} // upstream's words
	}
	if confined(pod) && !strings.HasPrefix(hardware.Line("/sys/module/apparmor/parameters/enabled"), "Y") {
		return &Rejection{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
	}
	return nil
}

// confined says whether a pod asks for a profile of AppArmor.
func confined(pod *corev1.Pod) bool {
	asks := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if sc := pod.Spec.SecurityContext; sc != nil && asks(sc.AppArmorProfile) {
		return true
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.SecurityContext != nil && asks(c.SecurityContext.AppArmorProfile) {
			return true
		}
	}
	return false
}

func (m *Manager) Fits(pod *corev1.Pod) error {
	node := m.Status.Node()
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil || !ok {
		return &Rejection{"NodeAffinity", "Predicate NodeAffinity failed"}
	}
	left := m.Resources.Allocatable()
	used := map[corev1.ResourceName]int64{}
	pods := int64(0)
	for _, other := range m.Pods.CountedPods() {
		if other.UID == pod.UID {
			continue
		}
		pods++
		theirs := resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{})
		for name := range theirs {
			used[name] += allocatable.Amount(theirs, name)
		}
	}
	if limit := left[corev1.ResourcePods]; pods+1 > limit.Value() {
		return &Rejection{"OutOfpods", fmt.Sprintf(
			"Node didn't have enough resource: pods, requested: 1, used: %d, capacity: %d", pods, limit.Value())}
	}
	wanted := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		capacity := allocatable.Amount(left, name)
		if want := allocatable.Amount(wanted, name); want > 0 && used[name]+want > capacity {
			return &Rejection{"OutOf" + string(name), fmt.Sprintf(
				"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, want, used[name], capacity)}
		}
	}
	return nil
}
