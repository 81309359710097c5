// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// Index is all objects of one namespaced resource that configures a plug-in, by their namespaces: a [Follower] keeps it, and
// a request in a namespace without any pays one look-up and no lock. The zero value is empty.
type Index[T resource.Object] struct {
	mu     sync.Mutex // of those who change it
	spaces sync.Map   // namespace → []T, in the order of their names, immutable
}

// In are the objects of a namespace, in the order of their names. They are shared.
func (x *Index[T]) In(namespace string) []T {
	found, ok := x.spaces.Load(namespace)
	if !ok {
		return nil
	}
	return found.([]T)
}

// Load reads all that is stored, and forgets what was known.
func (x *Index[T]) Load(ctx context.Context, b resource.Backend, r schema.GroupResource) error {
	stored, err := b.List(ctx, r, "")
	if apierrors.IsNotFound(err) {
		return nil // a server without the kind
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", r, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	all := map[string][]T{}
	for _, obj := range stored {
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

// Committed reads one object anew. Whoever comes last has read what is newest.
func (x *Index[T]) Committed(ctx context.Context, b resource.Backend, r schema.GroupResource, namespace, name string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	obj, err := b.Get(ctx, r, namespace, name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get %s %s/%s: %w", r, namespace, name, err)
	}
	kept := slices.DeleteFunc(slices.Clone(x.In(namespace)), func(o T) bool { return o.GetName() == name })
	if o, ok := obj.(T); ok && err == nil {
		kept = append(kept, o)
		slices.SortFunc(kept, byName[T])
	}
	if len(kept) == 0 {
		x.spaces.Delete(namespace)
		return nil
	}
	x.spaces.Store(namespace, kept)
	return nil
}

func byName[T resource.Object](a, b T) int { return strings.Compare(a.GetName(), b.GetName()) }
