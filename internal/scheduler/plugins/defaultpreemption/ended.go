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

// manyEnded is the number of remembered victims from which on abandoned ones are removed.
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

// going says whether any of the pod's victims is still on the node, as far as the scheduler knows.
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

// forget drops what is known of the pod's victims.
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

// begin notes that the pod's victims are being ended, lastOf that only one of them is left, over that none is. Where that failed the
// pod may look for others.
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

// held says whether the pod has to wait until its victims are being deleted. That the last of them is may be heard of before the request
// returns; nothing else would come that lets the pod be tried.
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
