// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// Index holds all objects of one namespaced resource that configures a plug-in, by namespace. A [Follower] updates it.
// A request in a namespace without such objects costs one look-up and no lock. The zero value is empty.
type Index[T resource.Object] struct {
	mu     sync.Mutex // held by writers
	spaces sync.Map   // namespace → []T, in the order of their names, immutable
}

// In returns the objects of a namespace, sorted by name. They are shared.
func (x *Index[T]) In(namespace string) []T {
	found, ok := x.spaces.Load(namespace)
	if !ok {
		return nil
	}
	return found.([]T)
}

// Load replaces all objects with the stored objects of a resource.
func (x *Index[T]) Load(ctx context.Context, stored feed.Lister, r schema.GroupResource) error {
	objs, err := stored.List(ctx, r, "")
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	all := map[string][]T{}
	for _, obj := range objs {
		if o, ok := obj.(T); ok {
			all[o.GetNamespace()] = append(all[o.GetNamespace()], o)
		}
	}
	x.spaces.Clear()
	for namespace, objs := range all {
		slices.SortFunc(objs, byName[T])
		x.spaces.Store(namespace, objs)
	}
	return nil
}

// Apply applies the change of one object.
func (x *Index[T]) Apply(c *feed.Change) {
	x.mu.Lock()
	defer x.mu.Unlock()
	objs := slices.DeleteFunc(slices.Clone(x.In(c.Namespace)), func(o T) bool { return o.GetName() == c.Name })
	if o, ok := c.Object.(T); ok {
		objs = append(objs, o)
		slices.SortFunc(objs, byName[T])
	}
	if len(objs) == 0 {
		x.spaces.Delete(c.Namespace)
		return
	}
	x.spaces.Store(c.Namespace, objs)
}

func byName[T resource.Object](a, b T) int { return strings.Compare(a.GetName(), b.GetName()) }
