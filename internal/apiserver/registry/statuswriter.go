// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// The writes of this file are the server's own to the status of objects that others make. They pass the kind's rules for its
// status path, as a client's do, but no admission, and are booked to a manager.

// UpdateStatus lets change edit the status of a copy of the newest object and stores it. No change is no write.
func (b *Backend) UpdateStatus(
	ctx context.Context, r schema.GroupResource, namespace, name, manager string, change func(obj resource.Object),
) error {
	return b.writeStatus(ctx, r, namespace, name, func(k *Kind, old *watchcache.CachedObject) (resource.Object, error) {
		obj := Copy(old)
		change(obj)
		return b.fields.Update(k.Descriptor, k.Storage, "status", old.Hub, obj, manager)
	})
}

// ApplyStatus merges status into the newest object's, as a server-side apply that takes what it wants.
func (b *Backend) ApplyStatus(ctx context.Context, r schema.GroupResource, namespace, name, manager string, status map[string]any) error {
	return b.writeStatus(ctx, r, namespace, name, func(k *Kind, old *watchcache.CachedObject) (resource.Object, error) {
		patch := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}, "status": status}}
		patch.SetGroupVersionKind(k.GroupVersionKind(k.Storage))
		c := managedfields.Configuration{Object: patch, Manager: manager, Force: true}
		return b.fields.Apply(k.Descriptor, k.Storage, "status", old.Hub, c)
	})
}

func (b *Backend) writeStatus(
	ctx context.Context, r schema.GroupResource, namespace, name string, edit func(*Kind, *watchcache.CachedObject) (resource.Object, error),
) error {
	k, namespace, err := b.kindIn(r, namespace)
	if err != nil {
		return err
	}
	s := k.Subresource("status")
	if s == nil || s.Strategy == nil || b.fields == nil {
		return apierrors.NewInternalError(fmt.Errorf("write status of %s: it has none", r))
	}
	_, _, err = b.writer.Update(ctx, &Update{
		Kind: k, Strategy: s.Strategy, Namespace: namespace, Name: name,
		Make: func(_ context.Context, old *watchcache.CachedObject) (resource.Object, error) { return edit(k, old) },
	})
	return err
}
