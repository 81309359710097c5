// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// ended are the victims that a pod has made room on a node with.
type ended struct {
	node    string
	victims sets.Set[types.UID]
}

// manyEnded is from how many on those are looked for that nobody waits for any more.
const manyEnded = 256

// remember notes whom the pod has ended.
func (p *plugin) remember(pod types.UID, node string, victims []*corev1.Pod) {
	if p.ended == nil {
		p.ended = map[types.UID]ended{}
	}
	if len(p.ended) >= manyEnded {
		for of, e := range p.ended {
			if !p.anyLeft(e) {
				delete(p.ended, of)
			}
		}
	}
	e := ended{node: node, victims: sets.New[types.UID]()}
	for _, v := range victims {
		e.victims.Insert(v.UID)
	}
	p.ended[pod] = e
}

// going says whether any of the pod's victims is still on the node, as far as the scheduler knows.
func (p *plugin) going(pod types.UID, node string) bool {
	e, ok := p.ended[pod]
	if !ok {
		return false
	}
	if e.node == node && p.anyLeft(e) {
		return true
	}
	delete(p.ended, pod)
	return false
}

func (p *plugin) anyLeft(e ended) bool {
	n, err := p.handle.SnapshotSharedLister().NodeInfos().Get(e.node)
	if err != nil {
		return false
	}
	for _, o := range n.GetPods() {
		if e.victims.Has(o.GetPod().UID) {
			return true
		}
	}
	return false
}
