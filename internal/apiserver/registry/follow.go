// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// SettleHeld lets change edit the initializers of an uninitialized object, and stores it; it then deletes the object if it
// is rejected, by this change or an earlier one.
func (b *Backend) SettleHeld(
	ctx context.Context, r schema.GroupResource, namespace, name string, change func(obj resource.Object) error,
) error {
	k, err := b.kind(r)
	if err != nil {
		return err
	}
	key := k.Key(namespace, name)
	for {
		rec, _, err := b.store.Get(ctx, key)
		if err != nil || rec == nil {
			return err
		}
		cur, err := k.Cached(rec)
		if err != nil {
			return err
		}
		obj := Copy(cur)
		if err := change(obj); err != nil {
			return err
		}
		now, f, err := b.writer.replace(ctx, k, rec, cur, obj, writeOptions{})
		if err == nil && b.writer.waiting.rejected(f.Hub) {
			err = b.writer.reject(ctx, k, now, f)
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) && ctx.Err() == nil {
			continue
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
}

// FollowHeld calls tell for each uninitialized object, for each change of it, and, with nil, when it is initialized or
// deleted. It begins with the existing ones, and continues until ctx ends.
func (b *Backend) FollowHeld(
	ctx context.Context, tell func(r schema.GroupResource, namespace, name string, obj resource.Object, gone bool),
) error {
	f := &following{Backend: b, tell: tell, told: map[string]*Kind{}}
	for {
		err := f.run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, store.ErrCompacted) {
			return fmt.Errorf("follow uninitialized objects: %w", err)
		}
		// it was too slow, and looks at everything again
	}
}

// following is one call of FollowHeld.
type following struct {
	*Backend
	tell func(r schema.GroupResource, namespace, name string, obj resource.Object, gone bool)
	told map[string]*Kind // what waits, by key
}

// scanned is how many records are looked at in one read.
const scanned = 5000

func (f *following) run(ctx context.Context) error {
	begun := f.store.Revision()
	w, err := f.store.Watch(ctx, root, begun)
	if err != nil {
		return err
	}
	defer w.Close()
	seen := map[string]bool{}
	for r := (store.Range{Prefix: root, Limit: scanned, Revision: begun}); ; {
		p, err := f.store.Range(ctx, r)
		if err != nil {
			return err
		}
		for _, rec := range p.Records {
			r.After = rec.Key
			if f.see(rec.Key, rec) {
				seen[rec.Key] = true
			}
		}
		if p.Remaining == 0 {
			break
		}
	}
	for key := range f.told { // ended while the watch was interrupted
		if !seen[key] {
			f.forget(key, true)
		}
	}
	f.writer.waiting.known.Store(true)
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range batch.Events {
			f.see(e.Key, e.Record)
		}
	}
}

// see reads the current object of a key, and reports whether it waits for initializers.
func (f *following) see(key string, rec *store.Record) bool {
	if rec == nil || !marked(rec.Value) {
		f.forget(key, rec == nil)
		return false
	}
	k := f.told[key]
	if k == nil {
		k = f.kinds.at(key)
	}
	if k == nil {
		return false
	}
	cached, err := k.Cached(rec)
	if err != nil || !v1alpha1.Uninitialized(cached.Hub) { // callers that want them see objects that cannot be decoded
		f.forget(key, false)
		return false
	}
	f.told[key] = k
	f.writer.waiting.kinds.Store(k.Root, nil)
	f.tell(k.GroupResource(), cached.Hub.GetNamespace(), cached.Hub.GetName(), cached.Hub, false)
	return true
}

func (f *following) forget(key string, gone bool) {
	k := f.told[key]
	if k == nil {
		return
	}
	delete(f.told, key)
	namespace, name := "", strings.TrimPrefix(key, k.Root)
	if k.Namespaced {
		namespace, name, _ = strings.Cut(name, "/")
	}
	f.tell(k.GroupResource(), namespace, name, nil, gone)
}
