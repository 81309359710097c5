// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package limitranger

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// check compares the resources of an object with the bounds of a LimitRange.
type check struct {
	of               corev1.LimitType
	requests, limits corev1.ResourceList
}

// values returns quantities at one precision: thousandths where that is possible.
func values(qs ...resource.Quantity) []int64 {
	out := make([]int64, len(qs))
	fine := true
	for i := range qs {
		out[i] = qs[i].Value()
		fine = fine && out[i] <= resource.MaxMilliValue
	}
	if fine {
		for i := range qs {
			out[i] = qs[i].MilliValue()
		}
	}
	return out
}

func (c *check) least(name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := c.requests[name]
	limit, limited := c.limits[name]
	v := values(request, limit, bound)
	switch {
	case !requested:
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", name, c.of, bound.String()) // upstream's words
	case v[0] < v[2]:
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", name, c.of, bound.String(), request.String())
	case limited && v[1] < v[2]:
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", name, c.of, bound.String(), limit.String())
	}
	return nil
}

func (c *check) most(name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := c.requests[name]
	limit, limited := c.limits[name]
	v := values(request, limit, bound)
	switch {
	case !limited:
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", name, c.of, bound.String()) // upstream's words
	case v[1] > v[2]:
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", name, c.of, bound.String(), limit.String())
	case requested && v[0] > v[2]:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, c.of, bound.String(), request.String())
	}
	return nil
}

// mostRequested is most for objects without limits.
func (c *check) mostRequested(name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := c.requests[name]
	v := values(request, bound)
	switch {
	case !requested:
		return fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, c.of, bound.String()) // upstream's words
	case v[0] > v[1]:
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, c.of, bound.String(), request.String())
	}
	return nil
}

func (c *check) ratio(name corev1.ResourceName, bound resource.Quantity) error {
	request, requested := c.requests[name]
	limit, limited := c.limits[name]
	v := values(request, limit, bound)
	switch {
	case !requested || v[0] == 0:
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, c.of, bound.String())
	case !limited || v[1] == 0:
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, c.of, bound.String())
	}
	is := float64(v[1]) / float64(v[0])
	scaled, allowed := is, float64(bound.Value())
	if bound.Value() <= resource.MaxMilliValue {
		scaled, allowed = is*1000, float64(bound.MilliValue())
	}
	if scaled > allowed {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, c.of, bound.String(), is)
	}
	return nil
}

// total returns the resources of a pod by its spec alone: the sum of its containers and sidecars, or what its
// initialization takes if that is more. Pod-level CPU and memory take precedence.
//
// Worked example: init containers a (3), s (1, a sidecar), b (2), containers c (1) and d (1): while a runs it takes 3, while b
// runs 2+1, afterwards 1+1+1; so the total is 3.
func total(pod *corev1.Pod, of func(*corev1.ResourceRequirements) corev1.ResourceList) corev1.ResourceList {
	sum, sidecars, starting := corev1.ResourceList{}, corev1.ResourceList{}, corev1.ResourceList{}
	for i := range pod.Spec.Containers {
		add(sum, of(&pod.Spec.Containers[i].Resources))
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		asked := of(&c.Resources)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(sum, asked)
			add(sidecars, asked)
			continue
		}
		now := corev1.ResourceList{}
		add(now, asked)
		add(now, sidecars)
		raise(starting, now)
	}
	raise(sum, starting)
	if whole := pod.Spec.Resources; whole != nil {
		said := maps.Clone(of(whole))
		maps.DeleteFunc(said, func(name corev1.ResourceName, _ resource.Quantity) bool {
			return name != corev1.ResourceCPU && name != corev1.ResourceMemory
		})
		maps.Copy(sum, said)
	}
	return sum
}

func add(to, what corev1.ResourceList) {
	for name, q := range what {
		has, ok := to[name]
		if !ok {
			to[name] = q.DeepCopy()
			continue
		}
		has.Add(q)
		to[name] = has
	}
}

func raise(to, what corev1.ResourceList) {
	for name, q := range what {
		if has, ok := to[name]; !ok || q.Cmp(has) > 0 {
			to[name] = q.DeepCopy()
		}
	}
}
