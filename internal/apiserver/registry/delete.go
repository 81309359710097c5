// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// errDeleting ends a deletion that is under way already and that the options do not hasten.
var errDeleting = errors.New("already being deleted")

// Deletion is the deletion of one object.
type Deletion struct {
	Kind            *Kind
	Namespace, Name string
	Options         *metav1.DeleteOptions
	// Validate is admission; nil: none.
	Validate func(ctx context.Context, old resource.Object) error
	// marked is the object after this deletion has set its grace period to 0. From then on any change of the object deletes it.
	marked *watchcache.CachedObject
}

// Delete deletes an object or begins its deletion; gone reports which. It retries when the object changes meanwhile.
func (w *Writer) Delete(ctx context.Context, d *Deletion) (f *watchcache.CachedObject, gone bool, err error) {
	key := d.Kind.Key(d.Namespace, d.Name)
	for {
		rec, _, err := w.store.Get(ctx, key)
		if err != nil {
			return nil, false, err
		}
		if rec == nil && d.marked != nil { // another's write was the end of it
			return d.marked, true, nil
		}
		if rec == nil {
			return nil, false, apierrors.NewNotFound(d.Kind.GroupResource(), d.Name)
		}
		if d.marked != nil {
			if current, err := d.Kind.Cached(rec); err == nil && current.Hub.GetUID() != d.marked.Hub.GetUID() {
				return d.marked, true, nil // and there is another of its name
			}
		}
		f, gone, err := w.deleteOnce(ctx, d, rec)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return f, gone, err
		}
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
	}
}

func (w *Writer) deleteOnce(ctx context.Context, d *Deletion, rec *store.Record) (*watchcache.CachedObject, bool, error) {
	k, st := d.Kind, &d.Kind.Strategy
	cur, err := k.Cached(rec)
	if err != nil {
		return nil, false, err
	}
	opts := d.Options.DeepCopy()
	dryRun := len(opts.DryRun) > 0
	if err := checkPreconditions(k, cur.Hub, opts); err != nil {
		return nil, false, err
	}
	if st.BeginDelete != nil {
		if cur.Hub.GetDeletionTimestamp() == nil {
			f, err := w.beginDelete(ctx, d, rec, cur, opts)
			return f, false, err
		}
		if len(st.Finalizers(cur.Hub)) > 0 {
			return cur, false, nil
		}
	}
	obj := Copy(cur)
	graceful, err := w.grace(ctx, st, obj, opts)
	if errors.Is(err, errDeleting) {
		return cur, false, nil
	} else if err != nil {
		return nil, false, err
	}
	if d.Validate != nil {
		if err := d.Validate(ctx, cur.Hub); err != nil {
			return nil, false, err
		}
	}
	finalizers := withPropagation(st, obj.GetFinalizers(), opts)
	if !slices.Equal(finalizers, obj.GetFinalizers()) {
		obj.SetFinalizers(finalizers)
	}
	pending := len(finalizers) > 0
	switch {
	case graceful && (*opts.GracePeriodSeconds > 0 || pending):
	case pending:
		w.mark(obj)
	default:
		f, err := w.deleteNow(ctx, d, rec, cur, obj, graceful)
		return f, true, err
	}
	_, f, err := w.replace(ctx, k, rec, cur, obj, writeOptions{dryRun: dryRun})
	return f, false, err
}

// deleteNow removes an object that nothing blocks, and returns its last state. For kinds with graceful deletion it first
// sets the grace period to zero: watchers see that as a separate change, and admission runs again for the changed object.
func (w *Writer) deleteNow(ctx context.Context, d *Deletion, rec *store.Record, cur *watchcache.CachedObject, obj resource.Object,
	graceful bool,
) (*watchcache.CachedObject, error) {
	k, dryRun := d.Kind, len(d.Options.DryRun) > 0
	if graceful {
		var err error
		if rec, cur, err = w.replace(ctx, k, rec, cur, obj, writeOptions{dryRun: dryRun}); err != nil {
			return nil, err
		}
		d.marked = cur
		if d.Validate != nil {
			if err := d.Validate(ctx, cur.Hub); err != nil {
				return nil, err
			}
		}
	}
	if dryRun {
		return cur, nil
	}
	at, err := w.remove(ctx, k, rec, cur.Hub)
	if err != nil || !k.Strategy.ReturnDeleted {
		return cur, err
	}
	last := Copy(cur)
	last.SetResourceVersion(strconv.FormatInt(at, 10))
	return k.NewCachedObject(last), nil
}

// beginDelete marks an object whose deletion is a separate state (namespaces, definitions): it sets the deletion timestamp, and no grace
// period.
func (w *Writer) beginDelete(
	ctx context.Context, d *Deletion, rec *store.Record, cur *watchcache.CachedObject, opts *metav1.DeleteOptions,
) (*watchcache.CachedObject, error) {
	if d.Validate != nil {
		if err := d.Validate(ctx, cur.Hub); err != nil {
			return nil, err
		}
	}
	obj := Copy(cur)
	now := metav1.NewTime(w.now()).Rfc3339Copy()
	obj.SetDeletionTimestamp(&now)
	st := &d.Kind.Strategy
	if d.Kind.Group == "" {
		//nolint:staticcheck // orphanDependents is deprecated and still honoured
		if o := opts.OrphanDependents; o != nil && !*o {
			foreground := metav1.DeletePropagationForeground
			opts.OrphanDependents, opts.PropagationPolicy = nil, &foreground
		}
		obj.SetFinalizers(withPropagation(st, obj.GetFinalizers(), opts))
	}
	st.BeginDelete(obj)
	_, f, err := w.replace(ctx, d.Kind, rec, cur, obj, writeOptions{dryRun: len(opts.DryRun) > 0})
	return f, err
}

func checkPreconditions(k *Kind, obj resource.Object, opts *metav1.DeleteOptions) error {
	p := opts.Preconditions
	if p == nil {
		return nil
	}
	gr := schema.GroupResource{Group: k.HubGroup, Resource: k.Descriptor.Kind}
	uid, rv := "the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated",
		"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified"
	if k.Strategy.BeginDelete != nil {
		gr = k.GroupResource()
		begin := "Precondition"
		if k.Group != "" {
			begin = "precondition"
		}
		uid = begin + " failed: UID in precondition: %s, UID in object meta: %s" // upstream's words
		rv = begin + " failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s"
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return apierrors.NewConflict(gr, obj.GetName(), fmt.Errorf(uid, *p.UID, obj.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(gr, obj.GetName(), fmt.Errorf(rv, *p.ResourceVersion, obj.GetResourceVersion()))
	}
	return nil
}

// grace decides whether the object stays for a while, and writes into it for how long.
//
// Worked example: a pod with 30 s of grace is deleted at 12:00:00: it gets deletionTimestamp 12:00:30 and a grace of 30. A
// second DELETE with 40 changes nothing; one with 10 moves the timestamp to 12:00:10; one with 0 removes the pod.
func (w *Writer) grace(ctx context.Context, st *resource.Strategy, obj resource.Object, opts *metav1.DeleteOptions) (bool, error) {
	one := int64(1)
	if g := opts.GracePeriodSeconds; g != nil && *g < 0 {
		opts.GracePeriodSeconds = &one
	}
	if st.Graceful == nil {
		return false, nil
	}
	now := metav1.NewTime(w.now()).Rfc3339Copy()
	if was := obj.GetDeletionTimestamp(); was != nil {
		had := obj.GetDeletionGracePeriodSeconds()
		if had == nil || *had == 0 {
			return false, nil
		}
		g := opts.GracePeriodSeconds
		if g == nil || *g >= *had {
			return false, errDeleting
		}
		period := *g
		at := metav1.NewTime(was.Add(time.Duration(period-*had) * time.Second))
		if at.Before(&now) {
			at = now
			if period != 0 {
				period = 1
			}
		}
		obj.SetDeletionTimestamp(&at)
		obj.SetDeletionGracePeriodSeconds(&period)
		opts.GracePeriodSeconds = &period
		return true, nil
	}
	if !st.Graceful(ctx, obj, opts) {
		return false, nil
	}
	if opts.GracePeriodSeconds == nil {
		return false, apierrors.NewInternalError(errors.New("options.GracePeriodSeconds should not be nil"))
	}
	at := metav1.NewTime(now.Add(time.Duration(*opts.GracePeriodSeconds) * time.Second))
	obj.SetDeletionTimestamp(&at)
	obj.SetDeletionGracePeriodSeconds(opts.GracePeriodSeconds)
	if g := obj.GetGeneration(); g > 0 {
		obj.SetGeneration(g + 1)
	}
	return true, nil
}

// mark writes into an object that it is being deleted and waits for its finalizers.
func (w *Writer) mark(obj resource.Object) {
	now := metav1.NewTime(w.now()).Rfc3339Copy()
	was := obj.GetDeletionTimestamp()
	if g := obj.GetGeneration(); was == nil && g > 0 {
		obj.SetGeneration(g + 1)
	}
	if was == nil || was.After(now.Time) {
		obj.SetDeletionTimestamp(&now)
	}
	var zero int64
	obj.SetDeletionGracePeriodSeconds(&zero)
}

// withPropagation is an object's finalizers with those that the options' propagation asks for.
func withPropagation(st *resource.Strategy, has []string, opts *metav1.DeleteOptions) []string {
	orphan, foreground := propagation(st, has, opts)
	kept := make([]string, 0, len(has)+1)
	for _, f := range has {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			kept = append(kept, f)
		}
	}
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	if len(kept) == len(has) && !slices.ContainsFunc(has, func(f string) bool { return !slices.Contains(kept, f) }) {
		return has
	}
	return kept
}

//nolint:staticcheck // orphanDependents is deprecated and still honoured
func propagation(st *resource.Strategy, has []string, opts *metav1.DeleteOptions) (orphan, foreground bool) {
	if opts.OrphanDependents != nil {
		return *opts.OrphanDependents, false
	}
	if p := opts.PropagationPolicy; p != nil {
		return *p == metav1.DeletePropagationOrphan, *p == metav1.DeletePropagationForeground
	}
	for _, f := range has {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return true, false
		case metav1.FinalizerDeleteDependents:
			return false, true
		}
	}
	return st.GarbageCollection == metav1.DeletePropagationOrphan, st.GarbageCollection == metav1.DeletePropagationForeground
}
