// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
)

// hook is something that a pod needs before it can have a sandbox, and that is taken
// away when the pod is over. Set-up is level-driven: it is called in every round in which
// the pod may run, and does what is not done yet. TearDown is called when no container
// of the pod runs any more, also for pods that a former life of the node set up.
type hook struct {
	name string
	// setUp may return a rejection, which fails the pod for good; all other errors are
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

// rejection is the refusal of a pod.
type rejection struct{ reason, message string }

func (r *rejection) Error() string { return r.reason + ": " + r.message }

// admit is the last guard against pods that do not fit: two schedulers may have raced.
// A pod that has containers already was admitted in a former life.
func (n *node) admit(_ context.Context, w *worker, pod *corev1.Pod) error {
	if w.admitted {
		return nil
	}
	if len(w.state.Sandboxes) == 0 && len(w.state.Containers) == 0 {
		if err := n.capable(pod); err != nil {
			return err
		}
		if why := n.shutdown.Refusal(); why != "" {
			return &rejection{"NodeShutdown", why}
		}
		if why := n.eviction.Refusal(pod); why != "" {
			return &rejection{evict.Reason, why}
		}
		if err := n.settings.sysctls.Check(pod); err != nil {
			return &rejection{"SysctlForbidden", err.Error()}
		}
		if err := n.fits(w, pod); err != nil {
			return err
		}
	}
	w.admitted = true
	n.mu.Lock()
	w.counted = true
	n.mu.Unlock()
	return nil
}

// capable refuses pods that ask for what this node or its runtime does not know: they would run, with less than they asked for.
func (n *node) capable(pod *corev1.Pod) error {
	if os := pod.Spec.OS; os != nil && string(os.Name) != runtime.GOOS {
		return &rejection{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	strict := n.nodeStatus.SupplementalGroupsPolicy()
	if sc := pod.Spec.SecurityContext; !strict && sc != nil && sc.SupplementalGroupsPolicy != nil && *sc.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict {
		return &rejection{"SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"} // upstream's words
	}
	if confined(pod) && !strings.HasPrefix(hardware.Line("/sys/module/apparmor/parameters/enabled"), "Y") {
		return &rejection{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
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

func (n *node) fits(w *worker, pod *corev1.Pod) error {
	node := n.nodeStatus.Node()
	ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	if err != nil || !ok {
		return &rejection{"NodeAffinity", "Predicate NodeAffinity failed"}
	}
	allocatable := n.resources.Allocatable()
	used := map[corev1.ResourceName]int64{}
	pods := int64(0)
	n.mu.Lock()
	for uid, other := range n.workers {
		if uid == w.uid || !other.counted || other.spec == nil {
			continue
		}
		pods++
		theirs := resourcehelper.PodRequests(other.spec, resourcehelper.PodResourcesOptions{})
		for name := range theirs {
			used[name] += amount(theirs, name)
		}
	}
	n.mu.Unlock()
	if limit := allocatable[corev1.ResourcePods]; pods+1 > limit.Value() {
		return &rejection{"OutOfpods", fmt.Sprintf("Node didn't have enough resource: pods, requested: 1, used: %d, capacity: %d", pods, limit.Value())}
	}
	wanted := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	names := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		capacity := amount(allocatable, name)
		if want := amount(wanted, name); want > 0 && used[name]+want > capacity {
			return &rejection{"OutOf" + string(name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, want, used[name], capacity)}
		}
	}
	return nil
}

// request is what a pod asks for: what it says itself, or the sum of its containers, or what its largest init container needs while
// sidecars run, whichever is more; CPU in thousandths.
func request(pod *corev1.Pod, name corev1.ResourceName) int64 {
	all := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	return amount(all, name)
}

func amount(list corev1.ResourceList, name corev1.ResourceName) int64 {
	q := list[name]
	if name == corev1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
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
	return n.volumes.SetUp(ctx, pod, n.podIPs(pod, w.state))
}

func (n *node) unmountVolumes(ctx context.Context, uid types.UID) error {
	return n.volumes.TearDown(ctx, uid)
}

// tearDown runs the hooks backwards; one that fails does not keep the others from running.
func (n *node) tearDown(ctx context.Context, uid types.UID) error {
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
