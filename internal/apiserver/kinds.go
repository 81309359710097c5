// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/meter"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/resource"
)

// kindCatalog lists the served kinds. It is safe for concurrent use.
type kindCatalog struct {
	registered *registry.Kinds
	custom     func() []*resource.Descriptor // of definitions, in order of arrival

	mu     sync.Mutex
	listed []*resource.Descriptor // nil: they have changed
}

// list returns all served descriptors. The slice is shared, and the same until they change.
func (c *kindCatalog) list() []*resource.Descriptor {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listed == nil {
		c.listed = c.sorted()
	}
	return c.listed
}

// relist marks the list for a rebuild by the next reader, so that with thousands of definitions one more is cheap.
func (c *kindCatalog) relist() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listed = nil
}

// sorted returns the descriptors, with the kinds of definitions last.
func (c *kindCatalog) sorted() []*resource.Descriptor {
	kinds, custom := c.registered.Descriptors(), c.custom()
	at := make(map[*resource.Descriptor]int, len(custom))
	for i, d := range custom {
		at[d] = i + 1
	}
	slices.SortStableFunc(kinds, func(a, b *resource.Descriptor) int { return at[a] - at[b] })
	return kinds
}

// change serves added kinds and stops serving removed ones; one that is in both is replaced.
func (c *kindCatalog) change(added, removed []*resource.Descriptor) {
	var gone []schema.GroupResource
	for _, d := range removed {
		if !slices.ContainsFunc(added, func(a *resource.Descriptor) bool { return a.GroupResource() == d.GroupResource() }) {
			gone = append(gone, d.GroupResource())
		}
	}
	c.registered.Remove(gone...)
	c.registered.Add(added...)
	c.relist()
}

// remove stops serving resources.
func (c *kindCatalog) remove(rs []schema.GroupResource) {
	c.registered.Remove(rs...)
	c.relist()
}

// countObjects counts the stored objects of each kind, without reading them. It gives up when life ends.
func (c *kindCatalog) countObjects(life context.Context, reader *registry.Reader, tell func(r schema.GroupResource, n int64)) {
	ctx, cancel := context.WithTimeout(life, storeWait)
	defer cancel()
	for _, d := range c.list() {
		k := c.registered.Get(d.GroupResource())
		if k == nil || k.Root == "" {
			continue
		}
		n, _, err := reader.Count(ctx, k, 1)
		if err != nil {
			continue // a response without this count is better than none
		}
		tell(d.GroupResource(), n)
	}
}

// countWatched reports the events and bytes sent to the watches of each kind.
func (c *kindCatalog) countWatched(tell func(meter.Watched)) {
	for _, d := range c.list() {
		k := c.registered.Get(d.GroupResource())
		if k == nil {
			continue
		}
		for i := range k.Traffic {
			sent, ended := k.Traffic[i].Total()
			if sent.Events > 0 || ended > 0 {
				tell(meter.Watched{
					GroupVersionResource: d.GroupResource().WithVersion(k.Versions[i].Name),
					Events:               sent.Events, Bytes: sent.Bytes, Sizes: sent.Sizes[:], Ended: ended,
				})
			}
		}
	}
}
