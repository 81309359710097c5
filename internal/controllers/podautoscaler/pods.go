// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

// podsByLabel finds the pods that a selector matches without a look at all pods of the namespace. It indexes pods by the labels that
// selectors have asked for, and by no others: without autoscalers it holds nothing.
type podsByLabel struct {
	lister listers.PodLister

	mu   sync.RWMutex
	keys map[string]map[labelValue]map[string]struct{} // names of pods, by the key of the label
}

// labelValue is a label's value in a namespace.
type labelValue struct{ namespace, value string }

// list returns the pods of a namespace that a selector matches, in any order.
func (p *podsByLabel) list(namespace string, selector labels.Selector) ([]*corev1.Pod, error) {
	key, values := calculator.Exact(selector)
	if key == "" {
		return p.lister.Pods(namespace).List(selector)
	}
	names, err := p.named(namespace, key, values)
	if err != nil {
		return nil, err
	}
	pods := make([]*corev1.Pod, 0, len(names))
	for _, name := range names {
		pod, err := p.lister.Pods(namespace).Get(name)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, err
		case selector.Matches(labels.Set(pod.Labels)):
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// named returns the names of the pods that have a label with one of the values.
func (p *podsByLabel) named(namespace, key string, values []string) (names []string, err error) {
	p.mu.RLock()
	index, known := p.keys[key]
	if !known {
		p.mu.RUnlock()
		if index, err = p.build(key); err != nil {
			return nil, err
		}
		p.mu.RLock()
	}
	defer p.mu.RUnlock()
	for _, v := range values {
		for name := range index[labelValue{namespace, v}] {
			names = append(names, name)
		}
	}
	return names, nil
}

// build indexes all pods by a label. Events that come meanwhile are applied to the result.
func (p *podsByLabel) build(key string) (map[labelValue]map[string]struct{}, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if index, known := p.keys[key]; known {
		return index, nil
	}
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if p.keys == nil {
		p.keys = map[string]map[labelValue]map[string]struct{}{}
	}
	index := map[labelValue]map[string]struct{}{}
	for _, pod := range all {
		put(index, key, pod)
	}
	p.keys[key] = index
	return index, nil
}

func put(index map[labelValue]map[string]struct{}, key string, pod *corev1.Pod) {
	value, has := pod.Labels[key]
	if !has {
		return
	}
	at := labelValue{pod.Namespace, value}
	if index[at] == nil {
		index[at] = map[string]struct{}{}
	}
	index[at][pod.Name] = struct{}{}
}

func drop(index map[labelValue]map[string]struct{}, key string, pod *corev1.Pod) {
	value, has := pod.Labels[key]
	if !has {
		return
	}
	at := labelValue{pod.Namespace, value}
	if delete(index[at], pod.Name); len(index[at]) == 0 {
		delete(index, at)
	}
}

// come, change and gone apply events, which the lister has applied before.
func (p *podsByLabel) come(pod *corev1.Pod) { p.change(nil, pod) }

func (p *podsByLabel) gone(pod *corev1.Pod) {
	now, err := p.lister.Pods(pod.Namespace).Get(pod.Name)
	if err != nil { // else another one of the name is there, and its event follows
		now = nil
	}
	p.change(pod, now)
}

func (p *podsByLabel) change(before, now *corev1.Pod) {
	if before != nil && now != nil && labels.Equals(before.Labels, now.Labels) {
		return
	}
	p.mu.RLock()
	none := len(p.keys) == 0
	p.mu.RUnlock()
	if none { // what is indexed from now on is read from the lister
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, index := range p.keys {
		if before != nil {
			drop(index, key, before)
		}
		if now != nil {
			put(index, key, now)
		}
	}
}
