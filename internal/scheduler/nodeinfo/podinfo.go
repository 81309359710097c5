// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeinfo

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PodInfo is a pod with the values that the scheduler computes from it once. It is immutable.
type PodInfo struct {
	Pod *corev1.Pod

	request       *Resource
	cpu0, memory0 int64     // with defaults for absent requests
	affinity      *affinity // to other pods; nil: most pods have none
	ports         []corev1.ContainerPort
}

// affinity is the terms of a pod's affinity to other pods.
type affinity struct {
	required, requiredAnti   []fwk.AffinityTerm
	preferred, preferredAnti []fwk.WeightedAffinityTerm
	whole                    bool // all terms could be parsed
}

var _ fwk.PodInfo = (*PodInfo)(nil)

// NewPodInfo computes a pod's PodInfo. The error names an affinity term that cannot be parsed; the result is usable without that term.
func NewPodInfo(pod *corev1.Pod) (*PodInfo, error) {
	p := &PodInfo{Pod: pod}
	p.request, p.cpu0, p.memory0 = Requests(pod)
	for i := range pod.Spec.Containers {
		p.addPorts(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			p.addPorts(c)
		}
	}
	return p, p.readAffinity(pod)
}

func (p *PodInfo) addPorts(c *corev1.Container) {
	for _, port := range c.Ports {
		if port.HostPort > 0 {
			p.ports = append(p.ports, port)
		}
	}
}

func (p *PodInfo) readAffinity(pod *corev1.Pod) (err error) {
	a := pod.Spec.Affinity
	if a == nil || a.PodAffinity == nil && a.PodAntiAffinity == nil {
		return nil
	}
	t := &affinity{}
	p.affinity = t
	if t.required, err = fwk.GetAffinityTerms(pod, fwk.GetPodAffinityTerms(a)); err != nil {
		return fmt.Errorf("read required affinity: %w", err)
	}
	if t.requiredAnti, err = fwk.GetAffinityTerms(pod, fwk.GetPodAntiAffinityTerms(a)); err != nil {
		return fmt.Errorf("read required anti-affinity: %w", err)
	}
	if a.PodAffinity != nil {
		if t.preferred, err = fwk.GetWeightedAffinityTerms(pod, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("read preferred affinity: %w", err)
		}
	}
	if a.PodAntiAffinity != nil {
		if t.preferredAnti, err = fwk.GetWeightedAffinityTerms(pod,
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution); err != nil {
			return fmt.Errorf("read preferred anti-affinity: %w", err)
		}
	}
	t.whole = true
	return nil
}

// none is the affinity of a pod without any.
var none affinity

func (p *PodInfo) terms() *affinity {
	if p.affinity == nil {
		return &none
	}
	return p.affinity
}

// GetPod and the following methods read the pod.
func (p *PodInfo) GetPod() *corev1.Pod                              { return p.Pod }
func (p *PodInfo) GetRequiredAffinityTerms() []fwk.AffinityTerm     { return p.terms().required }
func (p *PodInfo) GetRequiredAntiAffinityTerms() []fwk.AffinityTerm { return p.terms().requiredAnti }
func (p *PodInfo) GetPreferredAffinityTerms() []fwk.WeightedAffinityTerm {
	return p.terms().preferred
}
func (p *PodInfo) GetPreferredAntiAffinityTerms() []fwk.WeightedAffinityTerm {
	return p.terms().preferredAnti
}

// HostPorts returns the host ports that the pod uses.
func (p *PodInfo) HostPorts() []corev1.ContainerPort { return p.ports }

// CalculateResource returns the pod's requests.
func (p *PodInfo) CalculateResource() fwk.PodResource {
	return fwk.PodResource{Resource: p.request, Non0CPU: p.cpu0, Non0Mem: p.memory0}
}
