// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package evict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// Pod is a candidate for eviction, with its usage.
type Pod struct {
	Pod *corev1.Pod
	// Known means that there are measurements; a pod without any is evicted first.
	Known      bool
	Memory     int64 // working set
	Processes  int64
	Containers []Container
	Volumes    []Volume // local ones
}

// Container is the usage of one container.
type Container struct {
	Name                                          string
	Memory                                        int64
	LayerBytes, LayerInodes, LogBytes, LogsInodes int64
}

// Volume is the usage of the node's disk by one volume.
type Volume struct {
	Name          string
	Bytes, Inodes int64
}

// Eviction is the eviction of one pod.
type Eviction struct {
	Pod *corev1.Pod
	// Grace is the grace period in seconds.
	Grace       int64
	Signal      Signal // that causes it
	Message     string
	Annotations map[string]string // of the event
	// Disrupted means that the pod gets the condition DisruptionTarget, because it violated no limit.
	Disrupted bool
}

// Reason is the reason in the status of evicted pods.
const Reason = "Evicted"

// atOnce is the grace period of immediate evictions, in seconds.
const atOnce = 1

// byPriority orders pods by priority, the lowest first.
func byPriority(a, b Pod) int {
	return cmp.Compare(corev1helpers.PodPriority(a.Pod), corev1helpers.PodPriority(b.Pod))
}

// Victims ranks the pods to evict for a starved resource, without the critical ones.
func (m *Manager) Victims(s *Starvation, pods []Pod) []Eviction {
	ranked := slices.Clone(pods)
	slices.SortStableFunc(ranked, m.compare(s))
	var out []Eviction
	for _, p := range ranked {
		if podspec.IsCritical(p.Pod) {
			continue
		}
		e := Eviction{Pod: p.Pod, Signal: s.Signal, Grace: atOnce, Disrupted: true}
		if !s.Hard {
			e.Grace = m.MaxGrace
			if g := p.Pod.Spec.TerminationGracePeriodSeconds; g != nil {
				e.Grace = min(e.Grace, *g)
			}
		}
		e.Message, e.Annotations = s.message(p)
		out = append(out, e)
	}
	return out
}

// compare ranks the pod that is evicted first before the other.
func (m *Manager) compare(s *Starvation) func(a, b Pod) int {
	if s.Resource == pids {
		return func(a, b Pod) int {
			return cmp.Or(byPriority(a, b), first(!a.Known, !b.Known), cmp.Compare(b.Processes, a.Processes))
		}
	}
	above := func(p Pod) (exceeds bool, by int64) {
		used := m.used(s, p)
		// Inodes have no requests. As in kubelet, the ranking by usage above requests uses the request of disk for them.
		asked, counted := Request(p.Pod, s.Resource), Request(p.Pod, s.Resource)
		if s.Resource == inodes {
			counted = Request(p.Pod, corev1.ResourceEphemeralStorage)
		}
		return used > asked, used - counted
	}
	return func(a, b Pod) int {
		if !a.Known || !b.Known {
			return cmp.Or(first(!a.Known, !b.Known), byPriority(a, b))
		}
		aExceeds, aBy := above(a)
		bExceeds, bBy := above(b)
		return cmp.Or(first(aExceeds, bExceeds), byPriority(a, b), cmp.Compare(bBy, aBy))
	}
}

func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// used returns the pod's usage of the starved resource.
func (m *Manager) used(s *Starvation, p Pod) int64 {
	if s.Resource == corev1.ResourceMemory {
		return p.Memory
	}
	image := s.Signal == ImageFSAvailable || s.Signal == ImageFSInodesFree || s.Signal == ContainerFSAvailable ||
		s.Signal == ContainerFSInodesFree
	layers, rest := !m.ImageFS || image, !m.ImageFS || !image
	var sum int64
	pick := func(bytes, files int64) {
		if s.Resource == inodes {
			bytes = files
		}
		sum += bytes
	}
	for _, c := range p.Containers {
		if layers {
			pick(c.LayerBytes, c.LayerInodes)
		}
		if rest {
			pick(c.LogBytes, c.LogsInodes)
		}
	}
	for _, v := range p.Volumes {
		if rest {
			pick(v.Bytes, v.Inodes)
		}
	}
	return sum
}

// Request returns the pod's request of a resource.
func Request(pod *corev1.Pod, name corev1.ResourceName) int64 {
	q := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})[name]
	return q.Value()
}

// message returns kubelet's message of the eviction.
func (s *Starvation) message(p Pod) (string, map[string]string) {
	var text strings.Builder
	fmt.Fprintf(&text, "The node was low on resource: %v. ", s.Resource)
	for _, t := range s.thresholds {
		o, ok := s.observations[t.Signal]
		if meaning, _ := meaningOf(t.Signal); meaning.resource == s.Resource && ok {
			value := t.Value.Of(o.Capacity)
			fmt.Fprintf(&text, "Threshold quantity: %v, available: %v. ", &value, quantity(t.Signal, o.Available))
			break
		}
	}
	annotations := map[string]string{}
	if !p.Known {
		return text.String(), annotations
	}
	if r := p.Pod.Spec.Resources; s.Resource == corev1.ResourceMemory && r != nil {
		if request, ok := r.Requests[corev1.ResourceMemory]; ok {
			usage := resource.NewQuantity(p.Memory, resource.BinarySI).String()
			fmt.Fprintf(&text, "Pod %s was using %s, request is %s, has larger consumption of %v. ", p.Pod.Name, usage, request.String(), s.Resource)
			annotations["offending_pod"], annotations["offending_pod_usage"] = p.Pod.Name, usage
		}
	}
	var names, usages []string
	specs := slices.Concat(p.Pod.Spec.Containers, p.Pod.Spec.InitContainers)
	for _, c := range p.Containers {
		i := slices.IndexFunc(specs, func(spec corev1.Container) bool { return spec.Name == c.Name })
		var used int64
		switch {
		case i < 0:
			continue
		case s.Resource == corev1.ResourceMemory:
			used = c.Memory
		case s.Resource == corev1.ResourceEphemeralStorage:
			used = c.LayerBytes + c.LogBytes
		default:
			continue
		}
		request := specs[i].Resources.Requests[s.Resource]
		if usage := resource.NewQuantity(used, resource.BinarySI); usage.Cmp(request) > 0 {
			fmt.Fprintf(&text, "Container %s was using %s, request is %s, has larger consumption of %v. ", c.Name, usage.String(), request.String(),
				s.Resource)
			names, usages = append(names, c.Name), append(usages, usage.String())
		}
	}
	annotations["offending_containers"], annotations["offending_containers_usage"] = strings.Join(names, ","), strings.Join(usages, ",")
	annotations["starved_resource"] = string(s.Resource)
	return text.String(), annotations
}
