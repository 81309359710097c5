// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

// Run removes the objects of definitions that are being deleted, and then lets the definitions go, until ctx is done. It waits
// for [Registry.Committed] to tell of a deletion, and, where objects have finalizers, for each object that goes.
func (r *Registry) Run(ctx context.Context, b resource.Backend) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.cleaning:
		}
		for _, name := range r.takePending() {
			if err := r.cleanUp(ctx, b, name); err != nil && ctx.Err() == nil {
				r.opts.Logger.Error("clean up definition", "name", name, "error", err)
			}
		}
	}
}

// clean asks Run to look at a definition. The lock is held.
func (r *Registry) clean(name string) {
	r.pending[name] = true
	select {
	case r.cleaning <- struct{}{}:
	default:
	}
}

func (r *Registry) takePending() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make([]string, 0, len(r.pending))
	for name := range r.pending {
		names = append(names, name)
	}
	clear(r.pending)
	slices.Sort(names)
	return names
}

// watchDeletes makes each deletion of an object of a terminating definition a reason to look whether it was the last.
func (r *Registry) watchDeletes(d *resource.Descriptor, name string) {
	d.Strategy.Allocate = func(_ context.Context, _ resource.Backend, obj, _ resource.Object, dryRun bool) (func(bool), error) {
		return func(committed bool) {
			if committed && !dryRun && obj == nil {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.clean(name)
			}
		}, nil
	}
}

func (r *Registry) cleanUp(ctx context.Context, b resource.Backend, name string) error {
	r.mu.Lock()
	d := r.defs[name]
	r.mu.Unlock()
	if d == nil || d.def.DeletionTimestamp.IsZero() {
		return nil
	}
	condition := v1.CustomResourceDefinitionCondition{
		Type: v1.Terminating, Status: v1.ConditionFalse, Reason: "NeverEstablished", Message: "resource was never established",
	}
	switch {
	case d.descriptor != nil:
		left, err := deleteObjects(ctx, b, d.descriptor)
		if err != nil {
			return err
		}
		if left > 0 {
			return nil // the last one's deletion comes back here
		}
		condition.Reason, condition.Message = "InstanceDeletionCompleted", "removed all instances"
	case apihelpers.IsCRDConditionTrue(d.def, v1.Established):
		condition.Reason, condition.Message = "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"
	}
	_, err := b.Update(ctx, Resource, "", name, false, func(obj resource.Object) error {
		def := obj.(*v1.CustomResourceDefinition)
		apihelpers.CRDRemoveFinalizer(def, v1.CustomResourceCleanupFinalizer)
		setCondition(&def.Status, condition, r.opts.Now())
		return nil
	})
	if err == nil && len(d.def.Finalizers) == 1 {
		err = b.Delete(ctx, Resource, "", name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &d.def.UID}})
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("let definition go: %w", err)
	}
	return nil
}

// deleteObjects deletes all objects of a kind, and says how many are still there because of their finalizers.
func deleteObjects(ctx context.Context, b resource.Backend, d *resource.Descriptor) (int, error) {
	gr := d.GroupResource()
	objects, err := b.List(ctx, gr, "")
	if err != nil {
		return 0, fmt.Errorf("list objects: %w", err)
	}
	var errs []error
	for _, obj := range objects {
		if obj.GetDeletionTimestamp() != nil {
			continue
		}
		uid := obj.GetUID()
		err := b.Delete(ctx, gr, obj.GetNamespace(), obj.GetName(), &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("delete objects: %w", err)
	}
	objects, err = b.List(ctx, gr, "")
	if err != nil {
		return 0, fmt.Errorf("list objects: %w", err)
	}
	return len(objects), nil
}
