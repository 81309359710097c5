// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
)

// askExtenders has the extenders look the candidates through, one after the other. They may leave nodes out, and name other
// victims; none that are as important as the pod.
func (p *plugin) askExtenders(pod *corev1.Pod, found []*candidate) ([]*candidate, error) {
	var victims map[string]*extenderv1.Victims
	nodes := p.handle.SnapshotSharedLister().NodeInfos()
	for _, e := range p.handle.Extenders() {
		if !e.SupportsPreemption() || !e.IsInterested(pod) {
			continue
		}
		if victims == nil {
			victims = make(map[string]*extenderv1.Victims, len(found))
			for _, c := range found {
				victims[c.node.Node().Name] = &extenderv1.Victims{Pods: c.victims, NumPDBViolations: int64(c.hurt)}
			}
		}
		left, err := e.ProcessPreemption(pod, victims, nodes)
		if err == nil {
			err = check(pod, left, e.IsIgnorable())
		}
		switch {
		case err == nil:
			victims = left
		case !e.IsIgnorable():
			return nil, err
		}
		if len(victims) == 0 {
			return nil, nil
		}
	}
	if victims == nil {
		return found, nil // no extender was consulted
	}
	out := make([]*candidate, 0, len(victims))
	for _, name := range slices.Sorted(maps.Keys(victims)) {
		node, err := nodes.Get(name)
		if err != nil {
			return nil, err
		}
		v := victims[name]
		slices.SortFunc(v.Pods, importance)
		out = append(out, &candidate{node: node, victims: v.Pods, hurt: int(v.NumPDBViolations)})
	}
	return out, nil
}

// check refuses nodes without victims, or drops them where that can be ignored, and victims that may not be.
func check(pod *corev1.Pod, left map[string]*extenderv1.Victims, ignorable bool) error {
	for name, v := range left {
		if v == nil || len(v.Pods) == 0 {
			if !ignorable {
				return fmt.Errorf("expected at least one victim pod on node %q", name) // upstream's words
			}
			delete(left, name)
			continue
		}
		for _, victim := range v.Pods {
			if corev1helpers.PodPriority(victim) >= corev1helpers.PodPriority(pod) {
				return fmt.Errorf("extender names pod %s/%s on node %q as a victim, which is not of lower priority", victim.Namespace,
					victim.Name, name)
			}
		}
	}
	return nil
}
