// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podadmission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// The names of predicates, as reasons.
const (
	outOf        = "OutOf" // and the resource's name
	nodeAffinity = "NodeAffinity"
	unexpected   = "UnexpectedAdmissionError"
)

// refusal is one reason against a pod.
type refusal struct {
	reason, message string
	short           shortage // of a resource, if that is the reason
}

func (r refusal) rejection() *Rejection { return &Rejection{r.reason, r.message} }

// shortage is how much of a resource the node lacks for a pod; CPU in thousandths.
type shortage struct {
	resource corev1.ResourceName
	amount   int64
}

func affinityOnly(refusals []refusal) bool {
	return len(refusals) > 0 && !slices.ContainsFunc(refusals, func(r refusal) bool { return r.reason != nodeAffinity })
}

// fit reports whether the pod fits the node beside the other pods, or would fit without the victims.
func (m *Manager) fit(pod *corev1.Pod, node *corev1.Node) (*victims, []refusal) {
	others := slices.DeleteFunc(m.Pods.AdmittedPods(), func(other *corev1.Pod) bool { return other.UID == pod.UID })
	var used Requested
	for _, other := range others {
		used.Add(resourcehelper.PodRequests(other, resourcehelper.PodResourcesOptions{}))
	}
	refusals := insufficient(pod, m.allocatable(node), &used)
	if ok, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); err != nil || !ok {
		refusals = append(refusals, predicate(nodeAffinity, "node(s) didn't match Pod's node affinity/selector"))
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		refusals = append(refusals, predicate("NodeName", "node(s) didn't match the requested node name"))
	}
	if portsTaken(pod, others) {
		refusals = append(refusals, predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports"))
	}
	if !podspec.IsStatic(pod) {
		expels := func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
		_, found := corev1helpers.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, expels, false)
		if found {
			refusals = append(refusals, predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate"))
		}
	}
	if len(refusals) == 0 || !podspec.IsCritical(pod) {
		return nil, refusals
	}
	// A lack of resources does not refuse a critical pod: it preempts others.
	if rest := slices.DeleteFunc(slices.Clone(refusals), func(r refusal) bool { return r.short.resource != "" }); len(rest) > 0 {
		return nil, rest
	}
	return selectVictims(pod, others, refusals)
}

// allocatable returns what the node can give: what the Node shows, and of extended resources at least as much as pods have. The Node shows
// fewer while a plug-in is away.
func (m *Manager) allocatable(node *corev1.Node) corev1.ResourceList {
	shown := node.Status.Allocatable
	if m.Resources == nil {
		return shown
	}
	raised := false
	for name, amount := range m.Resources.Allocated() {
		if allocatable.Amount(shown, name) >= amount {
			continue
		}
		if !raised {
			shown, raised = maps.Clone(shown), true
			if shown == nil {
				shown = corev1.ResourceList{}
			}
		}
		shown[name] = *resource.NewQuantity(amount, resource.DecimalSI)
	}
	return shown
}

func predicate(name, message string) refusal {
	return refusal{reason: name, message: fmt.Sprintf("Predicate %s failed: %s", name, message)}
}

// Requested sums what the pods of a node request. The zero value is that of a node without pods. It is not safe for concurrent use.
type Requested struct {
	pods    int64
	amounts map[corev1.ResourceName]int64 // CPU in thousandths
}

// Add adds a pod with its requests.
func (r *Requested) Add(requests corev1.ResourceList) { r.count(requests, 1) }

// Remove removes a pod with the requests that it was added with.
func (r *Requested) Remove(requests corev1.ResourceList) { r.count(requests, -1) }

func (r *Requested) count(requests corev1.ResourceList, pods int64) {
	if r.amounts == nil {
		r.amounts = make(map[corev1.ResourceName]int64, len(requests))
	}
	r.pods += pods
	for name := range requests {
		r.amounts[name] += pods * allocatable.Amount(requests, name)
	}
}

// Reject returns why a node that has these allocatable resources lacks room for one more pod; nil: it has room.
func (r *Requested) Reject(pod *corev1.Pod, has corev1.ResourceList) *Rejection {
	if refusals := insufficient(pod, has, r); len(refusals) > 0 {
		return refusals[0].rejection()
	}
	return nil
}

// insufficient returns the resources of which the node has too little for the pod.
func insufficient(pod *corev1.Pod, has corev1.ResourceList, used *Requested) (out []refusal) {
	short := func(name corev1.ResourceName, wants, used, capacity int64) {
		out = append(out, refusal{
			reason:  outOf + string(name),
			message: fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", name, wants, used, capacity),
			short:   shortage{name, wants - (capacity - used)},
		})
	}
	if limit := has[corev1.ResourcePods]; used.pods+1 > limit.Value() {
		short(corev1.ResourcePods, 1, used.pods, limit.Value())
	}
	requests := resourcehelper.PodRequests(fromNode(pod, has), resourcehelper.PodResourcesOptions{})
	for _, name := range inOrder(requests) {
		capacity := allocatable.Amount(has, name)
		if wants := allocatable.Amount(requests, name); wants > 0 && used.amounts[name]+wants > capacity {
			short(name, wants, used.amounts[name], capacity)
		}
	}
	return out
}

// inOrder returns the names of the checked resources: CPU, memory and ephemeral storage first, then the others by name.
func inOrder(requests corev1.ResourceList) []corev1.ResourceName {
	first := []corev1.ResourceName{corev1.ResourceEphemeralStorage, corev1.ResourceMemory, corev1.ResourceCPU}
	names := slices.DeleteFunc(slices.Collect(maps.Keys(requests)), func(name corev1.ResourceName) bool {
		return !slices.Contains(first, name) && !strings.Contains(string(name), "/") &&
			!strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) &&
			!strings.HasPrefix(string(name), corev1.ResourceAttachableVolumesPrefix)
	})
	slices.SortFunc(names, func(a, b corev1.ResourceName) int {
		return cmp.Or(slices.Index(first, b)-slices.Index(first, a), cmp.Compare(a, b))
	})
	return names
}

// fromNode returns the pod with only those requests that the node itself must satisfy. Extended resources that the Node does not have
// belong to the cluster, and the scheduler allocates those of resource claims.
func fromNode(pod *corev1.Pod, has corev1.ResourceList) *corev1.Pod {
	claimed := func(container string, name corev1.ResourceName) bool {
		s := pod.Status.ExtendedResourceClaimStatus
		return s != nil && slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
			return m.ContainerName == container && m.ResourceName == string(name)
		})
	}
	without := func(containers []corev1.Container) []corev1.Container {
		out := slices.Clone(containers)
		for i, c := range out {
			requests := maps.Clone(c.Resources.Requests)
			maps.DeleteFunc(requests, func(name corev1.ResourceName, _ resource.Quantity) bool {
				_, there := has[name]
				return allocatable.IsExtended(name) && (!there || claimed(c.Name, name))
			})
			out[i].Resources.Requests = requests
		}
		return out
	}
	shallow := *pod
	shallow.Spec.Containers, shallow.Spec.InitContainers = without(pod.Spec.Containers), without(pod.Spec.InitContainers)
	return &shallow
}

// hostPort is a port of the node that a container uses.
type hostPort struct {
	protocol corev1.Protocol
	number   int32
}

// anyAddress is the host IP of ports on all addresses of the node.
const anyAddress = "0.0.0.0"

// hostPorts returns the ports of the node that the running pod uses, with their addresses.
func hostPorts(pod *corev1.Pod) map[hostPort][]string {
	var out map[hostPort][]string
	take := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort <= 0 {
				continue
			}
			if out == nil {
				out = map[hostPort][]string{}
			}
			port := hostPort{cmp.Or(p.Protocol, corev1.ProtocolTCP), p.HostPort}
			out[port] = append(out[port], cmp.Or(p.HostIP, anyAddress))
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	for i := range pod.Spec.Containers {
		take(&pod.Spec.Containers[i])
	}
	return out
}

// portsTaken reports whether another pod uses a port that the pod requests.
func portsTaken(pod *corev1.Pod, others []*corev1.Pod) bool {
	wanted := hostPorts(pod)
	if len(wanted) == 0 {
		return false
	}
	for _, other := range others {
		for port, theirs := range hostPorts(other) {
			for _, ip := range wanted[port] {
				if ip == anyAddress || slices.Contains(theirs, ip) || slices.Contains(theirs, anyAddress) {
					return true
				}
			}
		}
	}
	return false
}
