// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package calculator

import (
	"cmp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Selectors are the selectors of autoscalers' targets, as last read: two autoscalers that control the same pods find each other here. It
// may be used concurrently.
type Selectors struct {
	mu sync.RWMutex
	of map[string]map[string]labels.Selector // by namespace and name
}

// Add adds an autoscaler that selects nothing yet. One that is there keeps its selector.
func (s *Selectors) Add(namespace, name string) (added bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string]map[string]labels.Selector{}
	}
	if s.of[namespace] == nil {
		s.of[namespace] = map[string]labels.Selector{}
	}
	if _, there := s.of[namespace][name]; there {
		return false
	}
	s.of[namespace][name] = labels.Nothing()
	return true
}

// Set sets the selector of an autoscaler that is there.
func (s *Selectors) Set(namespace, name string, selector labels.Selector) (there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there = s.of[namespace][name]; there {
		s.of[namespace][name] = selector
	}
	return there
}

// Remove removes an autoscaler.
func (s *Selectors) Remove(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of[namespace], name)
	if len(s.of[namespace]) == 0 {
		delete(s.of, namespace)
	}
}

// Matching are the first two autoscalers that select one of the pods.
func (s *Selectors) Matching(namespace string, pods []*corev1.Pod) []Autoscaler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var distinct []labels.Set // the pods of a replica set have the same labels
	for _, pod := range pods {
		if !slices.ContainsFunc(distinct, func(l labels.Set) bool { return labels.Equals(l, pod.Labels) }) {
			distinct = append(distinct, pod.Labels)
		}
	}
	var found []Autoscaler
	for name, selector := range s.of[namespace] {
		if slices.ContainsFunc(distinct, func(l labels.Set) bool { return selector.Matches(l) }) {
			found = append(found, Autoscaler{Name: name, Namespace: namespace})
		}
	}
	slices.SortFunc(found, func(a, b Autoscaler) int { return cmp.Compare(a.Name, b.Name) })
	return found[:min(len(found), 2)]
}
