// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate"
	genericvalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

const optimisticLock = "the object has been modified; please apply your changes to the latest version and try again"

// Update is one change of a stored object.
type Update struct {
	Kind            *Kind
	Strategy        *resource.Strategy
	Namespace, Name string
	UID             types.UID // that the object must have; empty: any
	DryRun          bool
	Applied         bool                    // by server-side apply: managed fields are not given up to make room
	Declared        schema.GroupVersionKind // what the new object calls itself, if that is not its kind
	// AllowCreate lets Make be called with nil when the object does not exist.
	AllowCreate bool
	// Make returns the new object, which is its own; old is shared, nil when creating. It is called again after a conflict.
	Make func(ctx context.Context, old *watchcache.CachedObject) (resource.Object, error)
	// Validate and ValidateCreate are validating admission; nil: none.
	Validate       func(ctx context.Context, obj, old resource.Object) error
	ValidateCreate func(ctx context.Context, obj resource.Object) error
	Ended          func(err error) // as in Creation
}

// Update changes an object, again when others changed it meanwhile, until it is stored, refused, or ctx ends.
func (w *Writer) Update(ctx context.Context, c *Update) (f *watchcache.CachedObject, created bool, err error) {
	key := c.Kind.Key(c.Namespace, c.Name)
	reading := ctx
	if !c.DryRun {
		reading = w.store.AllowLag(ctx) // the commit's condition shows whether the object is the newest
	}
	for {
		rec, _, err := w.store.Get(reading, key)
		if err != nil {
			return nil, false, err
		}
		lagged := reading != ctx
		reading = ctx
		if rec == nil && lagged {
			continue
		}
		if rec == nil {
			if !c.AllowCreate && !c.Strategy.CreateOnUpdate {
				return nil, false, apierrors.NewNotFound(c.Kind.GroupResource(), c.Name)
			}
			f, err := w.updateCreate(ctx, c)
			if apierrors.IsAlreadyExists(err) && ctx.Err() == nil && !c.DryRun {
				continue
			}
			return f, err == nil, err
		}
		f, stored, err := w.updateOnce(ctx, c, rec)
		if c.Ended != nil {
			c.Ended(err)
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			if ctx.Err() != nil {
				return nil, false, ctx.Err()
			}
			continue
		}
		if lagged && !stored {
			newest, err := w.isNewest(ctx, rec)
			if err != nil {
				return nil, false, err
			}
			if !newest {
				continue
			}
		}
		return f, false, err
	}
}

// isNewest reports whether a key's record is the newest one.
func (w *Writer) isNewest(ctx context.Context, rec *store.Record) (bool, error) {
	now, _, err := w.store.Get(ctx, rec.Key)
	return now != nil && now.Revision == rec.Revision, err
}

func (w *Writer) updateCreate(ctx context.Context, c *Update) (*watchcache.CachedObject, error) {
	if c.UID != "" {
		return nil, apierrors.NewConflict(c.Kind.GroupResource(), c.Name, precondition(c.Kind.Key(c.Namespace, c.Name), "UID", string(c.UID), ""))
	}
	obj, err := c.Make(ctx, nil)
	if err != nil {
		return nil, err
	}
	if obj.GetUID() != "" {
		return nil, apierrors.NewConflict(c.Kind.GroupResource(), c.Name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", obj.GetUID()))
	}
	WipeSystemFields(obj)
	obj.SetResourceVersion("") // one that an update or a patch names is not looked at when there is nothing yet
	return w.createNamed(ctx, &Creation{
		Kind: c.Kind, Strategy: &c.Kind.Strategy, Namespace: c.Namespace, DryRun: c.DryRun, Applied: c.Applied,
		Validate: c.ValidateCreate, Ended: c.Ended,
	}, obj)
}

// updateOnce makes the change to one state of the object. stored reports whether it committed.
func (w *Writer) updateOnce(ctx context.Context, c *Update, rec *store.Record) (_ *watchcache.CachedObject, stored bool, _ error) {
	k, st := c.Kind, c.Strategy
	cur, err := k.Cached(rec)
	if err != nil {
		return nil, false, status.Undecodable(err)
	}
	if c.UID != "" && c.UID != cur.Hub.GetUID() {
		key := rec.Key
		if c.DryRun {
			key = strings.TrimPrefix(key, "/registry") // upstream's dry runs check above its store
		}
		return nil, false, apierrors.NewConflict(k.GroupResource(), c.Name, precondition(key, "UID", string(c.UID), string(cur.Hub.GetUID())))
	}
	obj, err := c.Make(ctx, cur)
	if err != nil {
		return nil, false, err
	}
	old := cur.Hub
	if k.Strategy.Match != nil {
		if old, err = k.Strategy.Match(ctx, obj, old); err != nil {
			return nil, false, err
		}
	}
	if st.Authorize != nil {
		if err := st.Authorize(ctx, obj, old); err != nil {
			return nil, false, err
		}
	}
	if rv := obj.GetResourceVersion(); rv == "" || rv == "0" {
		if st.Conditional || k.Strategy.Conditional {
			return nil, false, apierrors.NewInvalid(schema.GroupKind{Group: k.Group, Kind: k.Resource}, c.Name,
				field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0), "must be specified for an update")})
		}
		obj.SetResourceVersion(cur.Hub.GetResourceVersion())
	} else if want, err := ParseResourceVersion(rv); err != nil {
		return nil, false, errors.Unwrap(err)
	} else if want != rec.Revision {
		return nil, false, apierrors.NewConflict(k.GroupResource(), c.Name, errors.New(optimisticLock))
	}
	if c.Declared.Kind != "" {
		return nil, false, KindMismatch(c.Declared, k.Kind, c.Name)
	}
	done, err := w.allocate(ctx, st, obj, old, c.DryRun)
	if err != nil {
		return nil, false, err
	}
	committed := false
	defer func() { done(committed) }()
	if w.waiting.changed(k, st, cur.Hub) {
		err = beforeInitialize(ctx, k, st, obj, old)
	} else {
		err = beforeUpdate(ctx, k, st, obj, old)
	}
	if err != nil {
		return nil, false, err
	}
	keepTimes(obj, old)
	if c.Validate != nil {
		if err := c.Validate(ctx, obj, old); err != nil {
			return nil, false, err
		}
	}
	if finished(k, obj, cur.Hub) {
		if !c.DryRun {
			if _, err := w.remove(ctx, k, rec, cur.Hub); err != nil {
				return nil, false, err
			}
		}
		committed = true
		return k.NewCachedObject(obj), !c.DryRun, nil
	}
	now, f, err := w.replace(ctx, k, rec, cur, obj, writeOptions{dryRun: c.DryRun, applied: c.Applied})
	committed = err == nil && !c.DryRun
	if committed && w.waiting.rejected(f.Hub) {
		err = w.reject(ctx, k, now, f)
	}
	return f, committed && f != cur, err
}

// beforeUpdate prepares and validates a change.
func beforeUpdate(ctx context.Context, k *Kind, st *resource.Strategy, obj, old resource.Object) error {
	obj.SetGeneration(old.GetGeneration())
	if st.PrepareUpdate != nil {
		st.PrepareUpdate(ctx, obj, old)
	}
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if t := old.GetCreationTimestamp(); !t.IsZero() {
		obj.SetCreationTimestamp(t)
	}
	if t := old.GetDeletionTimestamp(); t != nil {
		obj.SetDeletionTimestamp(t)
	}
	if g := old.GetDeletionGracePeriodSeconds(); g != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(g)
	}
	meta := field.NewPath("metadata")
	errs := genericvalidation.ValidateObjectMetaAccessor(obj, k.Namespaced, pathSegment, meta)
	errs = append(errs, genericvalidation.ValidateObjectMetaAccessorUpdate(obj, old, meta)...)
	if st.ValidateUpdate != nil {
		errs = together(ctx, errs, st.ValidateUpdate(ctx, obj, old), k.Strategy.Undeclared)
	}
	if len(errs) > 0 {
		return invalid(k, obj, errs)
	}
	if st.Warn != nil {
		for _, text := range st.Warn(ctx, obj, old) {
			warning.AddWarning(ctx, "", text)
		}
	}
	return nil
}

// together joins the errors of an object's metadata and of the kind's validation without duplicates: an error of the kind's declared
// rules replaces the same error from elsewhere, and the first of equal errors stays. Kinds without declared rules keep duplicates.
func together(ctx context.Context, common, own field.ErrorList, undeclared bool) field.ErrorList {
	if undeclared || len(common) == 0 {
		return append(common, own...)
	}
	errs := validate.FilterCoveredHandwrittenErrors(ctx, common.MarkFromImperative(), own, true)
	said := make(map[string]bool, len(errs))
	for _, e := range errs {
		said[e.Error()] = true
	}
	for _, e := range own {
		if !said[e.Error()] {
			said[e.Error()] = true
			errs = append(errs, e)
		}
	}
	return errs
}

// keepTimes gives managed-field entries their old times if a write changes nothing else, so that nothing is stored. If it does, the
// writer's entry has the time of the write, even if its fields are the same.
func keepTimes(obj, old resource.Object) {
	entries, was := obj.GetManagedFields(), old.GetManagedFields()
	if len(entries) == 0 || len(entries) != len(was) {
		return
	}
	later := false
	for i := range entries {
		j := slices.IndexFunc(was, func(e metav1.ManagedFieldsEntry) bool { return sameEntry(&entries[i], &e) })
		if j < 0 {
			return
		}
		later = later || !entries[i].Time.Equal(was[j].Time)
	}
	if !later {
		return
	}
	version := obj.GetResourceVersion()
	obj.SetManagedFields(was)
	obj.SetResourceVersion(old.GetResourceVersion())
	if !apiequality.Semantic.DeepEqual(obj, old) {
		obj.SetManagedFields(entries)
	}
	obj.SetResourceVersion(version)
}

func sameEntry(a, b *metav1.ManagedFieldsEntry) bool {
	return a.Manager == b.Manager && a.Operation == b.Operation && a.APIVersion == b.APIVersion && a.Subresource == b.Subresource &&
		a.FieldsV1 != nil && b.FieldsV1 != nil && bytes.Equal(a.FieldsV1.GetRawBytes(), b.FieldsV1.GetRawBytes())
}

// finished is true when an update took the last finalizer of an object that is being deleted.
func finished(k *Kind, obj, old resource.Object) bool {
	if old.GetDeletionTimestamp() == nil || len(obj.GetFinalizers()) > 0 {
		return false
	}
	if k.Strategy.Finalizers != nil && len(k.Strategy.Finalizers(obj)) > 0 {
		return false
	}
	g := old.GetDeletionGracePeriodSeconds()
	return g == nil || *g == 0
}

func precondition(key, what, want, is string) error {
	return invalidObject(key, fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", what, want, what, is))
}

// invalidObject is how a store that is not our own words what it refuses.
func invalidObject(key, what string) error {
	return fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", key, what)
}

// invalid is the 422 of an object that validation refuses. One without a Go type is called what it calls itself, which admission
// may have changed.
func invalid(k *Kind, obj resource.Object, errs field.ErrorList) error {
	gk := schema.GroupKind{Group: k.HubGroup, Kind: k.Descriptor.Kind}
	if k.Unstructured {
		gk.Kind = obj.GetObjectKind().GroupVersionKind().Kind
	}
	return apierrors.NewInvalid(gk, obj.GetName(), errs)
}

// KindMismatch is the refusal of an object without a Go type that calls itself something else.
func KindMismatch(said schema.GroupVersionKind, want, name string) error {
	return apierrors.NewInvalid(said.GroupKind(), name, field.ErrorList{field.Invalid(field.NewPath("kind"), said.Kind, "must be "+want)})
}
