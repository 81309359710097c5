// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/decide"
)

// Allocate allocates the devices that a container's limits name. The errors are kubelet's. It does not wait for the disk: AddOptions does,
// after the pod's sandbox has started.
func (m *Manager) Allocate(ctx context.Context, r containermanager.Request) error {
	if r.Operation != containermanager.Add || r.Container == nil {
		return nil
	}
	for _, name := range m.asked(r.Pod, r.Container) {
		if err := m.allocateOne(ctx, r, name); err != nil {
			return err
		}
	}
	return nil
}

// asked returns the names of the known resources in a container's limits that resource claims do not serve, sorted.
func (m *Manager) asked(pod *corev1.Pod, c *corev1.Container) []string {
	var out []string
	for name, q := range c.Resources.Limits {
		if q.Value() > 0 && m.known(string(name)) != nil && !claimed(pod, c.Name, string(name)) {
			out = append(out, string(name))
		}
	}
	slices.Sort(out)
	return out
}

// claimed reports whether a resource claim serves a container's extended resource.
func claimed(pod *corev1.Pod, container, resource string) bool {
	s := pod.Status.ExtendedResourceClaimStatus
	return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}

// known returns the resource if a plug-in has it or had it. Others are none of this manager's.
func (m *Manager) known(name string) *resource {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.resources[name]
	if r == nil || r.expired && len(r.used) == 0 {
		return nil
	}
	return r
}

// allocateOne allocates the devices of one resource.
func (m *Manager) allocateOne(ctx context.Context, q containermanager.Request, name string) error {
	r := m.known(name)
	if r == nil {
		return nil
	}
	if err := r.lock(ctx); err != nil {
		return err
	}
	defer r.unlock()
	ctx = extension.For(ctx, q.Pod.Namespace, q.Pod.Name)
	m.forgetGone()
	limit := q.Container.Resources.Limits[corev1.ResourceName(name)]
	w := want{Request: q, name: name, resource: r, count: int(limit.Value())}
	choose := chooser{m}
	ids, p, err := choose.choose(ctx, w)
	if err != nil || len(ids) == 0 {
		return err
	}
	begun := m.Clock.Now()
	var answer *pluginapi.AllocateResponse
	err = p.call(ctx, "Allocate", callTimeout, func(ctx context.Context) (err error) {
		answer, err = p.client.Allocate(ctx, &pluginapi.AllocateRequest{
			ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}},
		})
		return err
	})
	m.Metrics.allocations.WithLabelValues(name).Observe(m.Clock.Since(begun).Seconds())
	if err != nil {
		return choose.lost(ctx, w, p, err)
	}
	if len(answer.GetContainerResponses()) == 0 {
		return fmt.Errorf("no containers return in allocation response %v", answer) // upstream's words
	}
	m.mu.Lock()
	uid := q.Pod.UID
	if m.pods[uid] == nil {
		m.pods[uid] = podDevices{}
	}
	m.pods[uid].set(q.Container.Name, name, &allocation{ids: ids, numa: r.perNUMA(ids), response: answer.GetContainerResponses()[0]})
	for _, id := range ids {
		r.used[id] = uid
	}
	keeper{m}.unsave()
	m.mu.Unlock()
	return nil
}

// lost returns the error of a failed call: a pod whose plug-in went meanwhile is held. mu is free.
func (m chooser) lost(ctx context.Context, w want, p *plugin, err error) error {
	if code := status.Code(err); code != codes.Unavailable && code != codes.Canceled {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return err
	case <-m.Clock.After(goneWithin):
		return err // the plug-in itself has answered so
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if until, held := m.heldUntil(w.resource); held {
		return m.hold(w.Pod.UID, w.name, until)
	}
	return err
}

// want is a container's request of one resource.
type want struct {
	containermanager.Request
	name     string
	resource *resource
	count    int
}

// heldUntil returns until when pods wait for the plug-in of the resource, if they do. The caller holds the lock.
func (m *Manager) heldUntil(r *resource) (time.Time, bool) {
	if r.ready() {
		return time.Time{}, false
	}
	from := r.gone
	if p := r.newest(); p != nil {
		from = p.since // it has not sent its devices yet
	}
	until := from.Add(m.Wait)
	return until, m.Clock.Now().Before(until)
}

// chooser chooses devices.
type chooser struct{ *Manager }

// choose returns the devices for a container, sorted, and the plug-in to allocate them. No devices: the container has all that it wants.
// The caller holds r.allocating.
func (m chooser) choose(ctx context.Context, w want) ([]string, *plugin, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := w.resource
	has := m.pods[w.Pod.UID][w.Container.Name][w.name]
	if has != nil && len(has.ids) != w.count {
		const words = "pod %q container %q changed request for resource %q from %d to %d" // upstream's
		return nil, nil, fmt.Errorf(words, w.Pod.UID, w.Container.Name, w.name, len(has.ids), w.count)
	}
	if until, held := m.heldUntil(r); held {
		return nil, nil, m.hold(w.Pod.UID, w.name, until)
	}
	if r.expired {
		return nil, nil, fmt.Errorf("cannot allocate unregistered device %s", w.name) // upstream's words
	}
	if _, healthy := r.count(); healthy == 0 {
		return nil, nil, fmt.Errorf("no healthy devices present; cannot allocate unhealthy devices %s", w.name) // upstream's words
	}
	if has != nil {
		for _, id := range has.ids {
			if !r.devices[id].healthy {
				return nil, nil, fmt.Errorf( // upstream's words
					"previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s", w.name)
			}
		}
		return nil, nil, nil
	}
	ids, err := m.pick(ctx, w)
	if err != nil {
		return nil, nil, err
	}
	p := r.newest()
	if p == nil { // it went while it was asked
		return nil, nil, m.hold(w.Pod.UID, w.name, r.gone.Add(m.Wait))
	}
	slices.Sort(ids)
	return ids, p, nil
}

// pick picks devices in kubelet's order: those of the pod's init containers, then those of the policy's NUMA nodes, then the others; within
// each group, those that the plug-in prefers first. The caller holds both locks; pick releases mu while it asks the plug-in.
func (m chooser) pick(ctx context.Context, w want) ([]string, error) {
	r := w.resource
	var out []string
	// take takes devices that are still free, and reports whether they are enough.
	take := func(ids []string) bool {
		for _, id := range ids {
			if len(out) == w.count {
				break
			}
			owner, used := r.used[id]
			if slices.Contains(out, id) || !r.devices[id].healthy || used && owner != w.Pod.UID {
				continue
			}
			out = append(out, id)
		}
		return len(out) == w.count
	}
	if take(m.reusable(w.Pod, w.Container.Name, w.name)) {
		return out, nil
	}
	free, missing := r.free(), w.count-len(out)
	if len(free) < missing {
		return nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", // upstream's words
			w.name, missing, len(free))
	}
	near, far, nowhere := r.byAffinity(free, w.Affinity)
	from := near
	if missing >= len(near) {
		if take(near) {
			return out, nil
		}
		from = free
	}
	preferred, err := m.preferred(ctx, w, append(slices.Clone(from), out...), slices.Clone(out))
	if err != nil {
		return nil, err
	}
	preferred = slices.DeleteFunc(preferred, func(id string) bool { return !slices.Contains(from, id) })
	for _, group := range [][]string{preferred, near, far, nowhere} {
		if take(group) {
			return out, nil
		}
	}
	return nil, fmt.Errorf("unexpectedly allocated less resources than required. Requested: %d, Got: %d", w.count, len(out)) // upstream's words
}

// preferred asks the plug-in which devices it would rather give. The caller holds mu, which is released meanwhile.
func (m chooser) preferred(ctx context.Context, w want, available, included []string) ([]string, error) {
	p := w.resource.newest()
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	slices.Sort(available)
	available = slices.Compact(available)
	m.mu.Unlock()
	defer m.mu.Lock()
	var answer *pluginapi.PreferredAllocationResponse
	err := p.call(ctx, "GetPreferredAllocation", callTimeout, func(ctx context.Context) (err error) {
		answer, err = p.client.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
			ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
				AvailableDeviceIDs: available, MustIncludeDeviceIDs: included, AllocationSize: int32(w.count),
			}},
		})
		return err
	})
	if err != nil {
		return nil, m.lost(ctx, w, p, err)
	}
	if len(answer.GetContainerResponses()) == 0 {
		return nil, nil
	}
	return answer.GetContainerResponses()[0].GetDeviceIDs(), nil
}

// reusable returns the devices of the pod's init containers that have ended before the container starts, and that no container has which
// runs beside it. The caller holds the lock.
func (m *Manager) reusable(pod *corev1.Pod, container, resource string) []string {
	has := m.pods[pod.UID]
	free := map[string]bool{}
	mark := func(name string, reusable bool) {
		if a := has[name][resource]; a != nil {
			for _, id := range a.ids {
				if reusable {
					free[id] = true
				} else {
					delete(free, id)
				}
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.Name == container {
			return slices.SortedFunc(maps.Keys(free), strings.Compare)
		}
		mark(c.Name, !decide.Sidecar(c))
	}
	for i := range pod.Spec.Containers {
		if name := pod.Spec.Containers[i].Name; name != container {
			mark(name, false)
		}
	}
	return slices.SortedFunc(maps.Keys(free), strings.Compare)
}

// Release frees a pod's devices.
func (m *Manager) Release(_ context.Context, pod types.UID) error {
	m.mu.Lock()
	delete(m.waiting, pod)
	_, had := m.pods[pod]
	m.free(pod)
	m.mu.Unlock()
	if !had {
		return nil
	}
	return keeper{m}.write()
}

// free frees a pod's devices. The caller holds the lock.
func (m *Manager) free(pod types.UID) {
	delete(m.pods, pod)
	for _, r := range m.resources {
		maps.DeleteFunc(r.used, func(_ string, owner types.UID) bool { return owner == pod })
	}
}

// forgetGone frees the devices of pods that the node no longer has: they were deleted while no process of the node ran. The checkpoint
// follows with the next allocation.
func (m *Manager) forgetGone() {
	known, all := m.Pods.Known()
	if !all {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.pods {
		if !known[uid] {
			m.free(uid)
		}
	}
}
