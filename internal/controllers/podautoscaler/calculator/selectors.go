// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package calculator

import (
	"cmp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Selectors are the selectors of autoscalers' targets, as last read: two autoscalers that control the same pods find each other here. It
// may be used concurrently.
type Selectors struct {
	mu sync.RWMutex
	in map[string]*selected // by namespace
}

// selected are the selectors of a namespace.
type selected struct {
	of    map[string]labels.Selector   // by name
	exact map[pair]map[string]struct{} // names of those that want a label to have one of some values, by each of these
	other map[string]struct{}          // names of the others
}

// pair is a label.
type pair struct{ key, value string }

// Exact returns a label that a selector wants to have one of some values; an empty key: there is none.
func Exact(selector labels.Selector) (key string, values []string) {
	requirements, selectable := selector.Requirements()
	if !selectable {
		return "", nil
	}
	for i := range requirements {
		switch r := &requirements[i]; r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			return r.Key(), r.Values().UnsortedList()
		}
	}
	return "", nil
}

// set sets the selector of an autoscaler; nil removes it.
func (s *selected) set(name string, selector labels.Selector) {
	if before := s.of[name]; before != nil {
		key, values := Exact(before)
		for _, v := range values {
			if at := (pair{key, v}); len(s.exact[at]) == 1 {
				delete(s.exact, at)
			} else {
				delete(s.exact[at], name)
			}
		}
		delete(s.other, name)
		delete(s.of, name)
	}
	if selector == nil {
		return
	}
	s.of[name] = selector
	key, values := Exact(selector)
	if key == "" {
		s.other[name] = struct{}{}
	}
	for _, v := range values {
		at := pair{key, v}
		if s.exact[at] == nil {
			s.exact[at] = map[string]struct{}{}
		}
		s.exact[at][name] = struct{}{}
	}
}

// Add adds an autoscaler that selects nothing yet. One that is there keeps its selector.
func (s *Selectors) Add(namespace, name string) (added bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == nil {
		s.in = map[string]*selected{}
	}
	in := s.in[namespace]
	if in == nil {
		in = &selected{map[string]labels.Selector{}, map[pair]map[string]struct{}{}, map[string]struct{}{}}
		s.in[namespace] = in
	}
	if in.of[name] != nil {
		return false
	}
	in.set(name, labels.Nothing())
	return true
}

// Set sets the selector of an autoscaler that is there.
func (s *Selectors) Set(namespace, name string, selector labels.Selector) (there bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.in[namespace]
	if in == nil || in.of[name] == nil {
		return false
	}
	if in.of[name].String() != selector.String() {
		in.set(name, selector)
	}
	return true
}

// Remove removes an autoscaler.
func (s *Selectors) Remove(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.in[namespace]
	if in == nil {
		return
	}
	if in.set(name, nil); len(in.of) == 0 {
		delete(s.in, namespace)
	}
}

// Matching are the first two autoscalers that select one of the pods.
func (s *Selectors) Matching(namespace string, pods []*corev1.Pod) []Autoscaler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	in := s.in[namespace]
	if in == nil {
		return nil
	}
	names := map[string]struct{}{}
	for _, pod := range pods {
		try := func(candidates map[string]struct{}) {
			for name := range candidates {
				if _, known := names[name]; !known && in.of[name].Matches(labels.Set(pod.Labels)) {
					names[name] = struct{}{}
				}
			}
		}
		try(in.other)
		for key, value := range pod.Labels {
			try(in.exact[pair{key, value}])
		}
	}
	found := make([]Autoscaler, 0, len(names))
	for name := range names {
		found = append(found, Autoscaler{Name: name, Namespace: namespace})
	}
	slices.SortFunc(found, func(a, b Autoscaler) int { return cmp.Compare(a.Name, b.Name) })
	return found[:min(len(found), 2)]
}
