// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Backend is the part of the API server that kinds' own actions and admission plug-ins use.
type Backend struct {
	resource.Services
	kinds  *Kinds
	writer *Writer
	store  *store.Store
	fields FieldManager // nil: managedFields are left as they are
	lags   bool         // Get and List return what the store's AllowLag allows
}

// Lagging returns a Backend whose List, and whose Get of an object that exists, may return a state that is as old as the store's AllowLag
// allows. Admission plug-ins read through it; those of kube-apiserver read from informers.
func (b *Backend) Lagging() *Backend {
	lagging := *b
	lagging.lags = true
	return &lagging
}

// reading returns the context of a read.
func (b *Backend) reading(ctx context.Context) context.Context {
	if b.lags {
		return b.store.AllowLag(ctx)
	}
	return ctx
}

var (
	_ resource.Backend     = (*Backend)(nil)
	_ resource.RecordStore = (*Backend)(nil)
)

func (b *Backend) kind(r schema.GroupResource) (*Kind, error) {
	if k := b.kinds.Get(r); k != nil {
		return k, nil
	}
	return nil, apierrors.NewNotFound(r, "")
}

// kindIn returns a kind, and the namespace of its objects, which is empty if they are of no namespace.
func (b *Backend) kindIn(r schema.GroupResource, namespace string) (*Kind, string, error) {
	k, err := b.kind(r)
	if err != nil || !k.Namespaced {
		namespace = ""
	}
	return k, namespace, err
}

// Get returns the hub object, shared and read-only.
func (b *Backend) Get(ctx context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	k, namespace, err := b.kindIn(r, namespace)
	if err != nil {
		return nil, err
	}
	key := k.Key(namespace, name)
	recent := b.reading(ctx)
	rec, _, err := b.store.Get(recent, key)
	if err == nil && rec == nil && recent != ctx { // it may have been created meanwhile
		rec, _, err = b.store.Get(ctx, key)
	}
	if err != nil {
		return nil, err
	}
	if rec == nil {
		return nil, apierrors.NewNotFound(r, name)
	}
	f, err := k.Cached(rec)
	if err != nil {
		return nil, err
	}
	return f.Hub, nil
}

// List returns all hub objects of a namespace, shared and read-only.
func (b *Backend) List(ctx context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	k, err := b.kind(r)
	if err != nil {
		return nil, err
	}
	p, err := b.store.Range(b.reading(ctx), store.Range{Prefix: k.Under(namespace)})
	if err != nil {
		return nil, err
	}
	objs := make([]resource.Object, len(p.Records))
	for i, rec := range p.Records {
		f, err := k.Cached(rec)
		if err != nil {
			return nil, err
		}
		objs[i] = f.Hub
	}
	return objs, nil
}

// Update lets change edit a copy of the newest object and stores it.
func (b *Backend) Update(
	ctx context.Context, r schema.GroupResource, namespace, name string, dryRun bool, change func(resource.Object) error,
) (resource.Object, error) {
	return b.rewrite(ctx, r, namespace, name, writeOptions{dryRun: dryRun},
		func(_ *Kind, cur *watchcache.CachedObject) (resource.Object, error) {
			obj := Copy(cur)
			return obj, change(obj)
		})
}

// UpdateAsServer implements [resource.ServerWriter].
func (b *Backend) UpdateAsServer(
	ctx context.Context, r schema.GroupResource, namespace, name, sub string, dryRun bool, change func(resource.Object) error,
) (resource.Object, error) {
	return b.rewrite(ctx, r, namespace, name, writeOptions{dryRun: dryRun},
		func(k *Kind, cur *watchcache.CachedObject) (resource.Object, error) {
			obj := Copy(cur)
			if err := change(obj); err != nil || sub == "" || b.fields == nil {
				return obj, err
			}
			return b.fields.Update(k.Descriptor, k.Storage, sub, cur.Hub, obj, "kube-apiserver")
		})
}

// Replace implements [resource.Backend].
func (b *Backend) Replace(
	ctx context.Context, r schema.GroupResource, namespace, name string, dryRun bool, with func(resource.Object) (resource.Object, error),
) (resource.Object, error) {
	exact := writeOptions{dryRun: dryRun, exact: true}
	return b.rewrite(ctx, r, namespace, name, exact, func(_ *Kind, cur *watchcache.CachedObject) (resource.Object,
		error) {
		return with(cur.Hub)
	})
}

// rewrite stores what is made of the newest object, again on conflict.
func (b *Backend) rewrite(
	ctx context.Context, r schema.GroupResource, namespace, name string, how writeOptions,
	next func(*Kind, *watchcache.CachedObject) (resource.Object, error),
) (resource.Object, error) {
	k, namespace, err := b.kindIn(r, namespace)
	if err != nil {
		return nil, err
	}
	key := k.Key(namespace, name)
	for {
		rec, _, err := b.store.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if rec == nil {
			return nil, apierrors.NewNotFound(r, name)
		}
		read := k.Cached
		if how.exact {
			read = k.Once
		}
		cur, err := read(rec)
		if err != nil {
			return nil, err
		}
		obj, err := next(k, cur)
		if err != nil {
			return nil, err
		}
		var f *watchcache.CachedObject
		if finished(k, obj, cur.Hub) {
			if !how.dryRun {
				_, err = b.writer.remove(ctx, k, rec, cur.Hub)
			}
			f = k.NewCachedObject(obj)
		} else {
			_, f, err = b.writer.replace(ctx, k, rec, cur, obj, how)
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, err
		}
		return f.Hub, nil
	}
}

// Create stores obj as its kind's create would, without admission.
func (b *Backend) Create(ctx context.Context, r schema.GroupResource, obj resource.Object, dryRun bool) (resource.Object, error) {
	k, namespace, err := b.kindIn(r, obj.GetNamespace())
	if err != nil {
		return nil, err
	}
	obj = obj.DeepCopyObject().(resource.Object)
	WipeSystemFields(obj)
	if v := k.Hub(); v.Default != nil {
		v.Default(obj)
	}
	if b.fields != nil {
		if obj, err = b.fields.Update(k.Descriptor, k.Storage, "", nil, obj, "kube-apiserver"); err != nil {
			return nil, err
		}
	}
	f, err := b.writer.Create(ctx, &Creation{Kind: k, Strategy: &k.Strategy, Namespace: namespace, DryRun: dryRun}, obj)
	if err != nil {
		return nil, err
	}
	return f.Hub, nil
}

// Delete deletes as a client's DELETE would, without admission.
func (b *Backend) Delete(ctx context.Context, r schema.GroupResource, namespace, name string, opts *metav1.DeleteOptions) error {
	k, namespace, err := b.kindIn(r, namespace)
	if err != nil {
		return err
	}
	if opts == nil {
		opts = &metav1.DeleteOptions{}
	}
	_, _, err = b.writer.Delete(ctx, &Deletion{Kind: k, Namespace: namespace, Name: name, Options: opts})
	return err
}

// root is the root of all keys.
const root = "/registry/"

// Record implements [resource.RecordStore].
func (b *Backend) Record(ctx context.Context, key string) ([]byte, int64, error) {
	rec, _, err := b.store.Get(ctx, root+key)
	if err != nil || rec == nil {
		return nil, 0, err
	}
	return rec.Value, rec.Revision, nil
}

// SetRecord implements [resource.RecordStore].
func (b *Backend) SetRecord(ctx context.Context, key string, value []byte, revision int64) (bool, error) {
	var err error
	if revision == 0 {
		_, err = b.store.Create(ctx, root+key, value, 0)
	} else {
		_, err = b.store.Update(ctx, root+key, revision, value, 0)
	}
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return false, nil
	}
	return err == nil, err
}
