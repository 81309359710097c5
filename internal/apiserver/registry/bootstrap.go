// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// BootstrapObject is an object that the server makes for itself where it is missing.
type BootstrapObject struct {
	Resource schema.GroupResource
	Object   resource.Object // shared; it is copied
	// Finish changes the copy after the kind has prepared it; nil: not at all.
	Finish func(obj resource.Object, now metav1.Time)
	// Fields are the copy's managed fields; they get the time of the creation.
	Fields []metav1.ManagedFieldsEntry
}

// portion is how many objects one commit creates where the store does not take all at once. An etcd takes 128 by default.
const portion = 100

// CreateMissing makes, in one commit if the store takes so many at once, those objects that are missing, and returns the stored form of
// those that are there already, nil for each that it made. Objects are not validated and pass no admission; nothing is allocated for
// them. Objects of kinds that are not served are left out.
func (b *Backend) CreateMissing(ctx context.Context, objects []BootstrapObject) ([]resource.Object, error) {
	for {
		found, err := b.createMissing(ctx, objects)
		var conflict *store.ConflictError
		if errors.As(err, &conflict) && ctx.Err() == nil {
			continue // another server was faster with one of them
		}
		return found, err
	}
}

func (b *Backend) createMissing(ctx context.Context, objects []BootstrapObject) ([]resource.Object, error) {
	there := map[string]*store.Record{}
	var read []schema.GroupResource
	for _, p := range objects {
		k := b.kinds.Get(p.Resource)
		if k == nil || slices.Contains(read, p.Resource) {
			continue
		}
		read = append(read, p.Resource)
		page, err := b.store.Range(ctx, store.Range{Prefix: k.Root})
		if err != nil {
			return nil, err
		}
		for _, rec := range page.Records {
			there[rec.Key] = rec
		}
	}
	now := metav1.NewTime(b.writer.now()).Rfc3339Copy()
	found := make([]resource.Object, len(objects))
	var ops []store.Op
	var made []int
	for i, p := range objects {
		k := b.kinds.Get(p.Resource)
		if k == nil {
			continue
		}
		key := k.Key(p.Object.GetNamespace(), p.Object.GetName())
		if rec := there[key]; rec != nil {
			f, err := k.Cached(rec)
			if err != nil {
				return nil, err
			}
			found[i] = f.Hub
			continue
		}
		data, err := k.Codec.Encode(p.prepare(ctx, k, now))
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", key, err)
		}
		ops, made = append(ops, store.Op{Key: key, Value: data}), append(made, i)
	}
	if len(ops) == 0 {
		return found, nil
	}
	revision, _, err := b.store.Commit(ctx, ops...)
	if errors.Is(err, store.ErrTooLarge) {
		for some := range slices.Chunk(ops, portion) {
			if revision, _, err = b.store.Commit(ctx, some...); err != nil {
				return nil, err
			}
		}
	}
	if err != nil {
		return nil, err
	}
	for _, i := range made {
		b.writer.settle(ctx, b.kinds.Get(objects[i].Resource), revision)
	}
	return found, nil
}

// prepare is the object as it is stored.
func (p *BootstrapObject) prepare(ctx context.Context, k *Kind, now metav1.Time) resource.Object {
	obj := p.Object.DeepCopyObject().(resource.Object)
	WipeSystemFields(obj)
	if v := k.Hub(); v.Default != nil {
		v.Default(obj)
	}
	obj.SetCreationTimestamp(now)
	obj.SetUID(uuid.NewUUID())
	if k.Strategy.PrepareCreate != nil {
		k.Strategy.PrepareCreate(ctx, obj)
	}
	if p.Finish != nil {
		p.Finish(obj, now)
	}
	fields := slices.Clone(p.Fields)
	for i := range fields {
		fields[i].Time = &now
	}
	obj.SetManagedFields(fields)
	return obj
}
