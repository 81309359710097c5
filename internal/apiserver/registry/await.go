// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

var _ resource.Awaiter = (*Backend)(nil)

// Await returns the hub object, shared and read-only, as soon as it exists.
func (b *Backend) Await(ctx context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	k, err := b.kind(r)
	if err != nil {
		return nil, err
	}
	if !k.Namespaced {
		namespace = ""
	}
	key := k.Key(namespace, name)
	rec, revision, err := b.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if rec == nil {
		w, err := b.store.Watch(ctx, key, revision)
		if err != nil {
			return nil, fmt.Errorf("watch %s: %w", key, err)
		}
		defer w.Close()
		for rec == nil {
			batch, err := w.Next(ctx)
			if err != nil {
				return nil, err
			}
			for _, e := range batch.Events {
				if e.Key == key {
					rec = e.Record // nil again where it was deleted at once
				}
			}
		}
	}
	f, err := k.Cached(rec)
	if err != nil {
		return nil, err
	}
	return f.Hub, nil
}
