// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// ProcessPreemption asks which of the nodes remain candidates for preemption, with which victims. The answer names pods by UID, however the
// request named them.
func (x *extender) ProcessPreemption(pod *corev1.Pod, victims map[string]*extenderv1.Victims,
	nodes fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	if !x.SupportsPreemption() {
		return nil, fmt.Errorf("preempt verb is not defined for extender %v but run into ProcessPreemption", x.URLPrefix) // upstream's words
	}
	question := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if x.NodeCacheCapable {
		question.NodeNameToMetaVictims = byUID(victims)
	} else {
		question.NodeNameToVictims = victims
	}
	var answer extenderv1.ExtenderPreemptionResult
	var out map[string]*extenderv1.Victims
	if err := x.ask(x.PreemptVerb, question, &answer, func() (err error) {
		out, err = x.victims(&answer, nodes)
		return err
	}); err != nil {
		return nil, err
	}
	return out, nil
}

// victims returns an answer's victims, as the snapshot has them.
func (x *extender) victims(answer *extenderv1.ExtenderPreemptionResult, nodes fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	out := make(map[string]*extenderv1.Victims, len(answer.NodeNameToMetaVictims))
	for name, named := range answer.NodeNameToMetaVictims {
		node, err := nodes.Get(name)
		if err != nil {
			return nil, err
		}
		if named == nil {
			out[name] = nil // the caller decides what no victims mean
			continue
		}
		v := &extenderv1.Victims{Pods: []*corev1.Pod{}, NumPDBViolations: named.NumPDBViolations}
		for _, n := range named.Pods {
			victim := find(node, n)
			if victim == nil {
				return nil, fmt.Errorf("extender: %v claims to preempt pod (UID: %v) on node: %v, but the pod is not found on that node", x.URLPrefix,
					n, name) // upstream's words
			}
			v.Pods = append(v.Pods, victim)
		}
		out[name] = v
	}
	return out, nil
}

func find(node fwk.NodeInfo, named *extenderv1.MetaPod) *corev1.Pod {
	if named == nil {
		return nil
	}
	for _, p := range node.GetPods() {
		if string(p.GetPod().UID) == named.UID {
			return p.GetPod()
		}
	}
	return nil
}

func byUID(victims map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	out := make(map[string]*extenderv1.MetaVictims, len(victims))
	for name, v := range victims {
		meta := &extenderv1.MetaVictims{Pods: []*extenderv1.MetaPod{}, NumPDBViolations: v.NumPDBViolations}
		for _, p := range v.Pods {
			meta.Pods = append(meta.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
		}
		out[name] = meta
	}
	return out
}
