// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// ended are the victims of a pod on a node.
type ended struct {
	node    string
	victims sets.Set[types.UID]
}

// manyEnded is the number of entries from which on the plug-in removes abandoned ones.
const manyEnded = 256

// remember records the pod's victims.
func (p *plugin) remember(pod types.UID, node string, victims []*corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// going reports whether any of the pod's victims is still on the node, as far as the scheduler knows.
func (p *plugin) going(pod types.UID, node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// forget drops the record of the pod's victims.
func (p *plugin) forget(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ended, pod)
}

// spared records that a victim returns to the queue, so that no pod waits for it.
func (p *plugin) spared(pod, victim types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e, ok := p.ended[pod]; ok {
		e.victims.Delete(victim)
	}
}

// begin records that the eviction of the pod's victims has begun, lastOf that only one of them is left, and over that it has ended. After a
// failure the pod may look for other victims.
func (p *plugin) begin(pod types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ending == nil {
		p.ending = map[types.UID]*corev1.Pod{}
	}
	p.ending[pod] = nil
}

func (p *plugin) lastOf(pod types.UID, victim *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending[pod] = victim
}

func (p *plugin) over(pod types.UID, failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.ending, pod)
	if failed {
		delete(p.ended, pod)
	}
}

// held reports whether the pod has to wait until its victims are being deleted. The scheduler may observe the last deletion before its
// request returns, and no later event would bring the pod back.
func (p *plugin) held(pod types.UID) bool {
	p.mu.Lock()
	last, ok := p.ending[pod]
	p.mu.Unlock()
	if !ok || last == nil || p.pods == nil {
		return ok
	}
	current, err := p.pods.Pods(last.Namespace).Get(last.Name)
	return err == nil && current.UID == last.UID && current.DeletionTimestamp == nil
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
