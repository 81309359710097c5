// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
)

// Labels finds the pods of a namespace by their labels, so that a question about a few pods does not look at all. It follows pods from the
// first question with a selector on, and indexes them by the labels that questions select by. It is safe for concurrent use.
type Labels struct {
	wanted chan struct{}
	want   func()

	mu     sync.RWMutex
	pods   map[podKey]map[string]string              // labels; nil: not loaded
	values map[string]map[podKey]map[string]struct{} // names of pods, by label key, and by namespace and label value
}

func newLabels() *Labels {
	l := &Labels{wanted: make(chan struct{})}
	l.want = sync.OnceFunc(func() { close(l.wanted) })
	return l
}

// Follower returns what the feed gives the changes of pods.
func (l *Labels) Follower() feed.Follower {
	return feed.Follower{
		Name: "metrics", Resources: []schema.GroupResource{podsResource}, Wanted: l.wanted, Background: true,
		Load:  func(ctx context.Context, stored *feed.Snapshot) error { return l.load(ctx, stored) },
		Apply: l.apply,
	}
}

func (l *Labels) load(ctx context.Context, stored feed.Lister) error {
	all, err := stored.List(ctx, podsResource, "")
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods = make(map[podKey]map[string]string, len(all))
	l.values = map[string]map[podKey]map[string]struct{}{} // built again when they are asked for
	for _, pod := range all {
		l.pods[podKey{pod.GetNamespace(), pod.GetName()}] = pod.GetLabels()
	}
	return nil
}

func (l *Labels) apply(_ context.Context, c *feed.Change) error {
	key := podKey{c.Namespace, c.Name}
	l.mu.Lock()
	defer l.mu.Unlock()
	before, now := l.pods[key], map[string]string(nil)
	if c.Object == nil {
		delete(l.pods, key)
	} else {
		now = c.Object.GetLabels()
		l.pods[key] = now
	}
	if maps.Equal(before, now) {
		return nil
	}
	for label, index := range l.values {
		if value, has := before[label]; has {
			at := podKey{c.Namespace, value}
			if delete(index[at], c.Name); len(index[at]) == 0 {
				delete(index, at)
			}
		}
		put(index, label, key, now)
	}
	return nil
}

// put adds a pod to the index of a label.
func put(index map[podKey]map[string]struct{}, label string, key podKey, of map[string]string) {
	value, has := of[label]
	if !has {
		return
	}
	at := podKey{key.namespace, value}
	if index[at] == nil {
		index[at] = map[string]struct{}{}
	}
	index[at][key.name] = struct{}{}
}

// find returns the names of all pods of a namespace that a selector may match, in their order; false: it is not known. The empty namespace
// is not one.
func (l *Labels) find(namespace string, by labels.Selector) (names []string, known bool) {
	label, values := exact(by)
	if label == "" || namespace == "" {
		return nil, false
	}
	l.want()
	l.mu.RLock()
	index, built := l.values[label]
	if !built {
		l.mu.RUnlock()
		index, built = l.build(label)
		l.mu.RLock()
	}
	defer l.mu.RUnlock()
	if !built {
		return nil, false
	}
	for _, v := range values {
		names = slices.AppendSeq(names, maps.Keys(index[podKey{namespace, v}]))
	}
	slices.Sort(names)
	return names, true
}

// build indexes all pods by a label; false: they are not loaded.
func (l *Labels) build(label string) (map[podKey]map[string]struct{}, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods == nil {
		return nil, false
	}
	index, built := l.values[label]
	if !built {
		if len(l.values) == mostLabels { // a client asks for ever new ones
			clear(l.values)
		}
		index = map[podKey]map[string]struct{}{}
		for key, of := range l.pods {
			put(index, label, key, of)
		}
		l.values[label] = index
	}
	return index, true
}

// mostLabels is the maximum number of labels by which pods are indexed.
const mostLabels = 16

// exact returns a label and the values of which a selector wants one; empty: it wants no such.
func exact(by labels.Selector) (label string, values []string) {
	if by == nil {
		return "", nil
	}
	requirements, selectable := by.Requirements()
	if !selectable {
		return "", nil
	}
	for _, r := range requirements {
		switch r.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			return r.Key(), r.ValuesUnsorted()
		}
	}
	return "", nil
}
