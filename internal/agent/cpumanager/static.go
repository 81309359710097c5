// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cpumanager/state"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
	"github.com/mortise-dev/mortise/internal/agent/podshare"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
)

// smtAlignmentError is the reason of a pod that is rejected for the sake of whole cores.
const smtAlignmentError = "SMTAlignmentError"

// static is the static policy: a container of a Guaranteed pod that requests whole CPUs gets them for itself. All others share what is
// left, the reserved CPUs among it unless these are strict. It belongs to the Manager, whose lock guards it.
type static struct {
	topology *cputopology.Topology
	options  Options
	reserved cpuset.CPUSet
	// siblings are the reserved CPUs with all threads of their cores.
	siblings cpuset.CPUSet
	group    int // CPUs of a core
	podLevel bool
	metrics  *resourcemetrics.Metrics

	state *state.State
}

// reserve chooses the reserved CPUs: those named, or so many as the quantity, rounded up, on the lowest cores.
func (p *static) reserve(named cpuset.CPUSet, quantity resource.Quantity) error {
	count := int((quantity.MilliValue() + 999) / 1000)
	p.reserved = named
	if named.IsEmpty() {
		cpus, err := p.take(p.topology.All(), count)
		if err == nil {
			p.reserved = cpus
		}
	}
	if p.reserved.Size() != count {
		return fmt.Errorf("[cpumanager] unable to reserve the required amount of CPUs (size of %s did not equal %d)", p.reserved, count)
	}
	for _, cpu := range p.reserved.List() {
		place, ok := p.topology.CPUs[cpu]
		if !ok {
			return fmt.Errorf("[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: %d", cpu)
		}
		p.siblings = p.siblings.Union(p.topology.In(cputopology.PhysicalCore, place[cputopology.PhysicalCore]))
	}
	return nil
}

// take takes CPUs of a set in the order that the options ask for.
func (p *static) take(from cpuset.CPUSet, count int) (cpuset.CPUSet, error) {
	if !p.options.DistributeCPUsAcrossNUMA {
		return takePacked(p.topology, from, count, p.options, p.options.PreferAlignByUncoreCache)
	}
	group := 1
	if p.options.FullPhysicalCPUsOnly {
		group = p.group
	}
	return takeDistributed(p.topology, from, count, group, p.options)
}

// usable returns the CPUs of the machine that containers may have: all but strictly reserved ones.
func (p *static) usable() cpuset.CPUSet {
	if p.options.StrictCPUReservation {
		return p.topology.All().Difference(p.reserved)
	}
	return p.topology.All()
}

// available returns the CPUs that no container has, without the reserved ones.
func (p *static) available() cpuset.CPUSet { return p.state.Shared.Difference(p.reserved) }

// whole reports whether a quantity is a whole number of CPUs.
func whole(q resource.Quantity) bool { return q.Value()*1000 == q.MilliValue() }

// exclusive returns how many CPUs a container gets for itself; zero: it runs on shared ones.
func (p *static) exclusive(pod *corev1.Pod, c *corev1.Container) int {
	if !podshare.Guaranteed(pod) || p.podLevel && podshare.PodLevel(pod) && !podshare.Equal(c) {
		return 0
	}
	if q := c.Resources.Requests[corev1.ResourceCPU]; whole(q) {
		return int(q.Value())
	}
	return 0
}

// exclusiveOfPod returns how many CPUs the containers of a pod get for themselves at the same time.
func (p *static) exclusiveOfPod(pod *corev1.Pod) int {
	if p.podLevel && podshare.PodLevel(pod) {
		if q := pod.Spec.Resources.Requests[corev1.ResourceCPU]; podshare.Guaranteed(pod) && whole(q) {
			return int(q.Value())
		}
		return 0
	}
	return podshare.Together(pod, func(c *corev1.Container) int { return p.exclusive(pod, c) })
}

// unmanaged reports whether a pod's own resources keep its containers on shared CPUs: kubelet's feature for them is off.
func (p *static) unmanaged(pod *corev1.Pod) bool { return !p.podLevel && podshare.PodLevel(pod) }

// allocate gives a container its CPUs. A container that has some keeps them.
func (p *static) allocate(pod *corev1.Pod, c *corev1.Container, affinity containermanager.TopologyHint) (err error) {
	count := p.exclusive(pod, c)
	if count == 0 || p.unmanaged(pod) {
		return nil
	}
	p.metrics.CPURequests.Inc()
	defer func() { p.countCores(err) }()
	uid := string(pod.UID)
	// What a container has stays, also if it is not aligned as a changed policy asks.
	if _, has := p.state.Containers[uid][c.Name]; has {
		return nil
	}
	if err := p.wholeCores(count); err != nil {
		return err
	}
	cpus, err := p.pick(count, affinity, p.reusable(pod, c))
	if err != nil {
		return err
	}
	p.state.Set(uid, c.Name, cpus)
	p.metrics.Allocations.WithLabelValues(resourcemetrics.CPU, resourcemetrics.FromNode).Inc()
	p.metrics.Assignments.WithLabelValues(resourcemetrics.CPU, resourcemetrics.NodeExclusive).Inc()
	return nil
}

// reusable returns the CPUs of the pod's init containers that end before a container starts, without those of its containers that run
// then. A nil container comes after all.
func (p *static) reusable(pod *corev1.Pod, c *corev1.Container) cpuset.CPUSet {
	out := cpuset.New()
	for _, before := range podshare.Containers(pod) {
		if c != nil && before.Name == c.Name {
			break
		}
		if cpus := p.state.Containers[string(pod.UID)][before.Name]; podshare.RunsOnce(pod, before) {
			out = out.Union(cpus)
		} else {
			out = out.Difference(cpus)
		}
	}
	return out
}

// countCores counts an allocation of a container.
func (p *static) countCores(err error) {
	of := p.metrics.Aligned
	if err != nil {
		p.metrics.CPUErrors.Inc()
		p.metrics.AllocationErrors.WithLabelValues(resourcemetrics.CPU, resourcemetrics.FromNode).Inc()
		of = p.metrics.Misaligned
	}
	if p.options.FullPhysicalCPUsOnly {
		of.WithLabelValues(resourcemetrics.ScopeContainer, resourcemetrics.BoundaryPhysicalCPU).Inc()
	}
}

// wholeCores returns an error if so many CPUs are not whole cores, or not so many whole cores are free.
func (p *static) wholeCores(count int) error {
	if !p.options.FullPhysicalCPUsOnly {
		return nil
	}
	free := p.state.Shared.Difference(p.siblings).Size()
	switch { // upstream's words
	case count%p.group != 0:
		return &containermanager.Rejection{Reason: smtAlignmentError, Message: fmt.Sprintf(
			"SMT Alignment Error: requested %d cpus not multiple cpus per core = %d", count, p.group)}
	case count > free:
		return &containermanager.Rejection{Reason: smtAlignmentError, Message: fmt.Sprintf(
			"SMT Alignment Error: not enough free physical CPUs: available physical CPUs = %d, requested CPUs = %d, CPUs per core = %d",
			free, count, p.group)}
	}
	return nil
}

// pick takes CPUs out of the shared ones: first those within the affinity.
func (p *static) pick(count int, affinity containermanager.TopologyHint, reusable cpuset.CPUSet) (cpuset.CPUSet, error) {
	free := p.available().Union(reusable)
	taken := cpuset.New()
	if affinity.Aligned() {
		near := p.near(affinity.Nodes, free)
		cpus, err := p.take(near, min(count, near.Size()))
		if err != nil {
			return cpuset.New(), err
		}
		taken = cpus
	}
	rest, err := p.take(free.Difference(taken), count-taken.Size())
	if err != nil {
		return cpuset.New(), err
	}
	taken = taken.Union(rest)
	p.state.Shared = p.state.Shared.Difference(taken)
	p.metrics.ExclusiveCPUs.Add(float64(count))
	p.metrics.SharedMilliCores.Sub(float64(1000 * count))
	if len(p.topology.Span(cputopology.Uncore, taken)) <= 1 {
		p.metrics.Aligned.WithLabelValues(resourcemetrics.ScopeContainer, resourcemetrics.BoundaryUncoreCache).Inc()
	}
	return taken, nil
}

// near returns those CPUs that are in the NUMA nodes, or in the sockets of these.
func (p *static) near(nodes containermanager.NUMANodes, free cpuset.CPUSet) cpuset.CPUSet {
	out := cpuset.New()
	for _, node := range p.topology.IDs(cputopology.NUMA) {
		if nodes.Has(node) {
			out = out.Union(p.topology.In(cputopology.NUMA, node))
		}
	}
	if p.options.AlignBySocket {
		for _, socket := range p.topology.Span(cputopology.Socket, out) {
			out = out.Union(p.topology.In(cputopology.Socket, socket))
		}
	}
	return out.Intersection(free)
}

// release takes a pod's CPUs back.
func (p *static) release(uid string) {
	back := cpuset.New()
	for _, cpus := range p.state.Containers[uid] {
		back = back.Union(cpus)
	}
	back = back.Union(p.state.Pods[uid])
	delete(p.state.Containers, uid)
	delete(p.state.Pods, uid)
	p.state.Shared = p.state.Shared.Union(back)
}

// measure sets the metrics of the state.
func (p *static) measure() {
	assigned := cpuset.New()
	for _, containers := range p.state.Containers {
		for _, cpus := range containers {
			assigned = assigned.Union(cpus)
		}
	}
	p.metrics.SharedMilliCores.Set(float64(1000 * p.available().Size()))
	p.metrics.ExclusiveCPUs.Set(float64(assigned.Size()))
	for _, node := range p.topology.IDs(cputopology.NUMA) {
		n := p.topology.In(cputopology.NUMA, node).Intersection(assigned).Size()
		p.metrics.CPUsPerNUMA.WithLabelValues(strconv.Itoa(node)).Set(float64(n))
	}
}

// allocatePod gives a pod with pod-level resources its CPUs, and distributes them among its containers: init containers that run once get
// what sidecars before them leave, and may share with those that follow; containers without CPUs of their own share what is left.
func (p *static) allocatePod(pod *corev1.Pod, affinity containermanager.TopologyHint) (err error) {
	total := p.exclusiveOfPod(pod)
	uid := string(pod.UID)
	if _, has := p.state.Pods[uid]; total == 0 || has {
		return nil
	}
	defer func() {
		if err != nil {
			p.metrics.CPUErrors.Inc()
			p.metrics.AllocationErrors.WithLabelValues(resourcemetrics.CPU, resourcemetrics.FromPod).Inc()
		}
	}()
	if err := p.leavesShared(pod, total); err != nil {
		return err
	}
	if err := p.wholeCores(total); err != nil {
		return err
	}
	before := p.state.Clone()
	cpus, err := p.pick(total, affinity, cpuset.New())
	if err != nil {
		return err
	}
	p.state.Pods[uid] = cpus
	if err := p.distributeInPod(pod, cpus); err != nil {
		*p.state = before
		return err
	}
	return nil
}

func (p *static) distributeInPod(pod *corev1.Pod, cpus cpuset.CPUSet) error {
	uid := string(pod.UID)
	note := func(c *corev1.Container, set cpuset.CPUSet, kind string) {
		p.state.Set(uid, c.Name, set)
		p.metrics.Assignments.WithLabelValues(resourcemetrics.CPU, kind).Inc()
		p.metrics.Allocations.WithLabelValues(resourcemetrics.CPU, resourcemetrics.FromPod).Inc()
	}
	left := cpus // without those of sidecars, and later without those of the pod's other containers
	var sharing []*corev1.Container
	for _, c := range podshare.Containers(pod) {
		once := podshare.RunsOnce(pod, c)
		switch count := p.exclusive(pod, c); {
		case count > 0:
			p.metrics.CPURequests.Inc()
			set, err := p.take(left, count)
			if err != nil {
				return err
			}
			note(c, set, resourcemetrics.PodExclusive)
			if !once {
				left = left.Difference(set)
			}
		case once:
			note(c, left, resourcemetrics.PodShared)
		default:
			sharing = append(sharing, c)
		}
	}
	for _, c := range sharing {
		note(c, left, resourcemetrics.PodShared)
	}
	return nil
}

// leavesShared returns an error if a container of the pod needs shared CPUs, and the others leave none.
func (p *static) leavesShared(pod *corev1.Pod, total int) error {
	exclusive, sharing := 0, false
	for _, c := range podshare.Containers(pod) {
		switch count := p.exclusive(pod, c); {
		case podshare.RunsOnce(pod, c):
			if count == 0 && exclusive >= total {
				return &containermanager.Rejection{Reason: podshare.EmptyPool,
					Message: "pod rejected, pod has shared init containers but no cpus available for them"} // upstream's words
			}
		case count == 0:
			sharing = true
		default:
			exclusive += count
		}
	}
	if sharing && exclusive >= total {
		return &containermanager.Rejection{Reason: podshare.EmptyPool, Message: "pod rejected, sum of exclusive container cpu requests " +
			"equals pod budget, leaving no cpus for shared containers"} // upstream's words
	}
	return nil
}

// assignedTo returns the CPUs of the pod's containers, and whether each that has some has as many as it requests.
func (p *static) assignedTo(pod *corev1.Pod) (cpus cpuset.CPUSet, right bool) {
	cpus, right = cpuset.New(), true
	for _, c := range podshare.Containers(pod) {
		if set, has := p.state.Containers[string(pod.UID)][c.Name]; has {
			cpus = cpus.Union(set)
			right = right && set.Size() == p.exclusive(pod, c)
		}
	}
	return cpus, right
}
