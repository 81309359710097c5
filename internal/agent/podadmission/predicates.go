// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podadmission

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/podfit"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// The names of predicates, as reasons.
const (
	nodeAffinity = "NodeAffinity"
	unexpected   = "UnexpectedAdmissionError"
)

// refusal is one reason against a pod.
type refusal struct {
	reason, message string
	short           shortage // of a resource, if that is the reason
}

func (r refusal) rejection() *Rejection { return &Rejection{Reason: r.reason, Message: r.message} }

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
	var used podfit.Requested
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

// insufficient returns the resources of which the node has too little for the pod.
func insufficient(pod *corev1.Pod, has corev1.ResourceList, used *podfit.Requested) (out []refusal) {
	for _, s := range used.Lacks(pod, has) {
		r := s.Rejection()
		out = append(out, refusal{reason: r.Reason, message: r.Message, short: shortage{s.Resource, s.Amount}})
	}
	return out
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
