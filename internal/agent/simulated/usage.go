// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// The default usage. It is not zero, since metrics-server omits containers without usage.
const (
	defaultMilliCPU = 1
	defaultMemory   = 1 << 20
	nodeMilliCPU    = 10 // of the node itself
	nodeMemory      = 100 << 20
)

// usage is what each container of a pod uses all the time.
type usage struct {
	milliCPU int64
	memory   int64
}

// usageOf returns what the pod's annotations declare, else what its node does for all pods.
func usageOf(pod *corev1.Pod, takes Phases) usage {
	read := func(annotation string, name corev1.ResourceName) (resource.Quantity, bool) {
		if text, declared := pod.Annotations[annotation]; declared {
			if q, err := resource.ParseQuantity(text); err == nil && q.Sign() >= 0 {
				return q, true
			}
		}
		q, ok := takes.Usage[name]
		return q, ok
	}
	u := usage{defaultMilliCPU, defaultMemory}
	if q, ok := read(AnnotationCPUUsage, corev1.ResourceCPU); ok {
		u.milliCPU = q.MilliValue()
	}
	if q, ok := read(AnnotationMemoryUsage, corev1.ResourceMemory); ok {
		u.memory = q.Value()
	}
	return u
}

// usageOn returns what each container of a pod uses on a node: its part if its controller's pods share the load.
func usageOn(f *fleet, n *node, pod *corev1.Pod) usage {
	takes := f.phases(n)
	u := usageOf(pod, takes)
	if takes.SharesCPU {
		u.milliCPU /= int64(max(len(f.pods.sharers(pod)), 1))
	}
	return u
}

// shareAgain meters the pods that share the load with a pod that has started, ended or gone.
func (f *fleet) shareAgain(pod *corev1.Pod) {
	for _, other := range f.pods.sharers(pod) {
		if n := f.nodes.get(other.Spec.NodeName); n != nil && f.phases(n).SharesCPU {
			n.meters.update(other, f.clock.Now(), usageOn(f, n, other).milliCPU)
		}
	}
}

// sharers returns the running pods of a pod's controller; none: it has no controller.
func (c podCache) sharers(pod *corev1.Pod) []*corev1.Pod {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return nil
	}
	all, err := c.index.ByIndex(byController, string(controller.UID))
	if err != nil { // only a missing index fails
		panic("list pods of a controller from memory: " + err.Error())
	}
	out := make([]*corev1.Pod, 0, len(all))
	for _, obj := range all {
		if p, ok := obj.(*corev1.Pod); ok {
			out = append(out, p)
		}
	}
	return out
}

// meters count the processor time of a node's containers. A container gets a meter when its time is first read: its time
// until then is computed from the declaration of its pod at that moment. From then on every change of the declaration is
// metered, since counters that jump look like load.
type meters struct {
	mu    sync.Mutex
	pods  map[types.UID]map[string]*meter // by pod, and ID of the container
	ended uint64                          // nanoseconds of containers that have ended
}

type meter struct {
	milliCPU int64
	at       time.Time
	used     uint64 // nanoseconds, until at
}

func (m *meter) until(now time.Time) {
	if d := now.Sub(m.at); d > 0 {
		m.used += uint64(d) / 1000 * uint64(m.milliCPU)
		m.at = now
	}
}

// read returns the time that a container has used since it started.
func (m *meters) read(pod types.UID, container string, started, now time.Time, milliCPU int64) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.pods[pod]
	if of == nil {
		if m.pods == nil {
			m.pods = map[types.UID]map[string]*meter{}
		}
		of = map[string]*meter{}
		m.pods[pod] = of
	}
	each := of[container]
	if each == nil {
		each = &meter{milliCPU: milliCPU, at: started}
		of[container] = each
	}
	each.until(now)
	each.milliCPU = milliCPU
	return each.used
}

// update meters a pod's containers up to now, goes on with what they use from now on, and drops those that do not run any more.
func (m *meters) update(pod *corev1.Pod, now time.Time, milliCPU int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.pods[pod.UID]
	if of == nil {
		return
	}
	running := map[string]bool{}
	for _, s := range statuses(pod) {
		running[s.ContainerID] = s.State.Running != nil
	}
	for id, each := range of {
		each.until(now)
		each.milliCPU = milliCPU
		if !running[id] {
			m.ended += each.used
			delete(of, id)
		}
	}
}

// drop ends the meters of a pod that is gone.
func (m *meters) drop(pod types.UID, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, each := range m.pods[pod] {
		each.until(now)
		m.ended += each.used
	}
	delete(m.pods, pod)
}

// usedBefore returns the time of containers that have ended.
func (m *meters) usedBefore() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// containers returns what the node's running containers use, in the order of their names.
func (v view) containers() []stats.Container {
	f, n := v.f, v.n
	now := f.clock.Now()
	var out []stats.Container
	for _, pod := range f.pods.on(n.name) {
		u := usageOn(f, n, pod)
		for name, s := range statuses(pod) {
			if s.State.Running == nil {
				continue
			}
			started := s.State.Running.StartedAt.Time
			out = append(out, stats.Container{
				Target: podspec.Target{Namespace: pod.Namespace, Pod: pod.Name, UID: pod.UID, Container: name},
				ID:     s.ContainerID, Image: s.Image, Started: started, Time: now,
				CPUNanoseconds: n.meters.read(pod.UID, s.ContainerID, started, now, u.milliCPU),
				MemoryBytes:    uint64(u.memory), MemoryWorkingSetBytes: uint64(u.memory),
			})
		}
	}
	slices.SortFunc(out, func(a, b stats.Container) int {
		return cmp.Or(cmp.Compare(a.Target.Namespace, b.Target.Namespace), cmp.Compare(a.Target.Pod, b.Target.Pod),
			cmp.Compare(a.Target.Container, b.Target.Container))
	})
	return out
}

// host sums what the node uses: what its running containers use, what ended ones have used, and a little itself.
func (v view) host(running []stats.Container) *stats.Host {
	f, n := v.f, v.n
	now := f.clock.Now()
	out := &stats.Host{
		Booted: f.started, CPUNanoseconds: uint64(max(now.Sub(f.started), 0)) / 1000 * nodeMilliCPU, MemoryBytes: nodeMemory,
	}
	for _, c := range running {
		out.CPUNanoseconds += c.CPUNanoseconds
		out.MemoryBytes += c.MemoryBytes
	}
	out.CPUNanoseconds += n.meters.usedBefore()
	out.MemoryWorkingSetBytes = out.MemoryBytes
	if has := n.capacity.Memory().Value(); has > 0 {
		out.MemoryAvailableBytes = uint64(has) - min(uint64(has), out.MemoryBytes)
	}
	return out
}
