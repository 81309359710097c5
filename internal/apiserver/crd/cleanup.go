// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

// Run deletes the objects of definitions that are being deleted, and then removes the definitions' finalizer, until ctx is
// done. It waits for [Registry.Apply] to report a deletion, and for each object with finalizers. It reports failures in the
// definition's status, and retries after a while.
func (r *Registry) Run(ctx context.Context, b resource.Backend) error {
	var again <-chan time.Time
	pause := firstPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.cleaning:
		case <-again:
		}
		again = nil
		failed := false
		for _, name := range r.takePending() {
			if err := r.cleanUp(ctx, b, name); err != nil && ctx.Err() == nil {
				r.opts.Logger.Error("Could not delete the objects of a CustomResourceDefinition", "name", name, "error", err)
				r.retry(name)
				failed = true
			}
		}
		if !failed {
			pause = firstPause
			continue
		}
		again = time.After(pause)
		pause = min(2*pause, lastPause)
	}
}

// Delays of retries. No event reports that a webhook works again.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
)

// retry keeps a definition for the next round.
func (r *Registry) retry(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[name] = true
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
	if d == nil || d.def.DeletionTimestamp.IsZero() || !slices.Contains(d.def.Finalizers, v1.CustomResourceCleanupFinalizer) {
		return nil
	}
	condition := v1.CustomResourceDefinitionCondition{
		Type: v1.Terminating, Status: v1.ConditionFalse, Reason: "NeverEstablished", Message: "resource was never established",
	}
	switch {
	case !established(d.def):
	case d.descriptor == nil:
		condition.Reason, condition.Message = "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"
	default:
		left, failure := deleteObjects(ctx, b, d.descriptor)
		if failure != nil {
			_, err := r.terminate(ctx, b, name, v1.CustomResourceDefinitionCondition{
				Type: v1.Terminating, Status: v1.ConditionTrue, Reason: "InstanceDeletionFailed", Message: failure.Error(),
			}, false)
			return errors.Join(failure, err)
		}
		if left > 0 { // the last one's deletion comes back here
			_, err := r.terminate(ctx, b, name, v1.CustomResourceDefinitionCondition{
				Type: v1.Terminating, Status: v1.ConditionTrue, Reason: "InstanceDeletionInProgress", Message: "CustomResource deletion is in progress",
			}, false)
			return err
		}
		condition.Reason, condition.Message = "InstanceDeletionCompleted", "removed all instances"
	}
	free, err := r.terminate(ctx, b, name, condition, true)
	if err != nil || !free {
		return err
	}
	err = b.Delete(ctx, Resource, "", name, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &d.def.UID}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("remove finalizer of definition: %w", err)
	}
	return nil
}

// terminate writes the progress of a definition's deletion, and removes the finalizer when done. It reports whether there
// is no other finalizer.
func (r *Registry) terminate(ctx context.Context, b resource.Backend, name string, condition v1.CustomResourceDefinitionCondition,
	done bool) (free bool, err error) {
	_, err = b.Update(ctx, Resource, "", name, false, func(obj resource.Object) error {
		def := obj.(*v1.CustomResourceDefinition)
		if done {
			apihelpers.CRDRemoveFinalizer(def, v1.CustomResourceCleanupFinalizer)
		}
		was := apihelpers.FindCRDCondition(def, v1.Terminating).DeepCopy()
		setCondition(&def.Status, condition, r.opts.Now())
		free = done && len(def.Finalizers) == 0
		if apihelpers.IsCRDConditionEquivalent(was, &condition) {
			return nil
		}
		return own(def, r.opts.Now())
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("write status of %s: %w", name, err)
	}
	return free, nil
}

// deleteObjects deletes all objects of a kind, and returns how many remain because of their finalizers.
func deleteObjects(ctx context.Context, b resource.Backend, d *resource.Descriptor) (int, error) {
	gr := d.GroupResource()
	objects, err := b.List(ctx, gr, "")
	if err != nil {
		return 0, fmt.Errorf("could not list instances: %w", err) // upstream's words
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
		return 0, fmt.Errorf("could not issue all deletes: %w", err) // upstream's words
	}
	objects, err = b.List(ctx, gr, "")
	if err != nil {
		return 0, fmt.Errorf("could not list instances: %w", err) // upstream's words
	}
	return len(objects), nil
}
