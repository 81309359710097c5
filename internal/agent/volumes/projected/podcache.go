// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package projected

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// podCache has values of pods by key. Concurrent calls are safe for different pods; the values of one pod belong to its worker.
type podCache[K comparable, V any] struct {
	mu sync.Mutex
	of map[types.UID]map[K]V
}

func (c *podCache[K, V]) get(pod types.UID, key K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	value, ok := c.of[pod][key]
	return value, ok
}

func (c *podCache[K, V]) set(pod types.UID, key K, value V) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[types.UID]map[K]V{}
	}
	if c.of[pod] == nil {
		c.of[pod] = map[K]V{}
	}
	c.of[pod][key] = value
}

func (c *podCache[K, V]) forget(pod types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.of, pod)
}

// soonest returns the earliest time that at returns for a value of the pod; zero without any.
func (c *podCache[K, V]) soonest(pod types.UID, at func(V) time.Time) (first time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, value := range c.of[pod] {
		first = sooner(first, at(value))
	}
	return first
}

// sooner returns the earlier one of two times, of which zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
