// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate"
	genericvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

const (
	optimisticLock   = "the object has been modified; please apply your changes to the latest version and try again"
	generateAttempts = 8
	randomSuffix     = 5
	longestGenerated = 63 - randomSuffix
)

// creation is one object on its way into the store.
type creation struct {
	kind     *Kind
	strategy *resource.Strategy
	ns       string
	dryRun   bool
	applied  bool // its managed fields are not given up to make room
	// validate is validating admission; nil: none.
	validate func(ctx context.Context, obj resource.Object) error
	// ended is told what became of an object that validate was asked about; nil: nobody wants to know.
	ended func(err error)
}

// insert stores a new object. It draws a name if there is only the beginning of one, again if that is taken.
func (a *API) insert(ctx context.Context, c *creation, obj resource.Object) (*watchcache.Forms, error) {
	if obj.GetName() != "" || obj.GetGenerateName() == "" {
		f, err := a.insertNamed(ctx, c, obj)
		if apierrors.IsAlreadyExists(err) && obj.GetGenerateName() != "" {
			err = apierrors.NewGenerateNameConflict(c.kind.GroupResource(), obj.GetName(), 1)
		}
		return f, err
	}
	for attempt := 1; ; attempt++ {
		o := obj.DeepCopyObject().(resource.Object)
		base := o.GetGenerateName()
		if len(base) > longestGenerated {
			base = base[:longestGenerated]
		}
		o.SetName(base + utilrand.String(randomSuffix))
		f, err := a.insertNamed(ctx, c, o)
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return f, err
		}
		if attempt == generateAttempts {
			return nil, apierrors.NewGenerateNameConflict(c.kind.GroupResource(), o.GetName(), 1)
		}
	}
}

func (a *API) insertNamed(ctx context.Context, c *creation, obj resource.Object) (*watchcache.Forms, error) {
	f, err := a.insertOnce(ctx, c, obj)
	if c.ended != nil {
		c.ended(err)
	}
	return f, err
}

func (a *API) insertOnce(ctx context.Context, c *creation, obj resource.Object) (*watchcache.Forms, error) {
	k, st := c.kind, c.strategy
	obj.SetCreationTimestamp(metav1.NewTime(a.Now()).Rfc3339Copy())
	obj.SetUID(uuid.NewUUID())
	if st.Authorize != nil {
		if err := st.Authorize(ctx, obj, nil); err != nil {
			return nil, err
		}
	}
	done, err := a.allocate(ctx, st, obj, nil, c.dryRun)
	if err != nil {
		return nil, err
	}
	committed := false
	defer func() { done(committed) }()
	if st.PrepareCreate != nil {
		st.PrepareCreate(ctx, obj)
	}
	if st.Validate != nil {
		if errs := st.Validate(ctx, obj); len(errs) > 0 {
			return nil, invalid(k, obj, errs)
		}
	}
	if errs := genericvalidation.ValidateObjectMetaAccessor(obj, k.Namespaced, pathSegment, field.NewPath("metadata")); len(errs) > 0 {
		return nil, invalid(k, obj, errs)
	}
	if st.Warn != nil {
		for _, w := range st.Warn(ctx, obj, nil) {
			warning.AddWarning(ctx, "", w)
		}
	}
	if c.validate != nil {
		if err := c.validate(ctx, obj); err != nil {
			return nil, err
		}
	}
	key := k.Key(c.ns, obj.GetName())
	if c.dryRun {
		rec, _, err := a.Store.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if rec != nil {
			return nil, taken(k, obj.GetName(), rec)
		}
		return k.Unstored(key, obj)
	}
	if rv, err := revision(obj.GetResourceVersion()); err == nil && rv != 0 {
		return nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	obj.SetResourceVersion("")
	data, err := stored{k, key}.encode(obj, 0, !c.applied)
	if err != nil {
		return nil, err
	}
	explain.From(ctx).Enter(explain.Store)
	a.holdsOne(k, obj)
	begun := time.Now()
	rec, err := a.Store.Create(ctx, key, data, ttlOf(k, obj))
	request.TrackStorageLatency(ctx, time.Since(begun))
	if err != nil {
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			return nil, taken(k, obj.GetName(), conflict.Current)
		}
		return nil, err
	}
	committed = true
	explain.From(ctx).Committed(k.Descriptor, nil, obj, nil, data, rec.Revision)
	a.applied(ctx, k, rec.Revision)
	return k.Forms(rec)
}

// taken is the 409 of a name that an object has, which may be on its way out.
func taken(k *Kind, name string, by *store.Record) error {
	e := apierrors.NewAlreadyExists(k.GroupResource(), name)
	if by == nil {
		return e
	}
	if f, err := k.Forms(by); err == nil && f.Hub.GetDeletionTimestamp() != nil {
		e.ErrStatus.Message = "object is being deleted: " + e.ErrStatus.Message
	}
	return e
}

func pathSegment(name string, prefix bool) []string {
	if prefix {
		return path.IsValidPathSegmentPrefix(name)
	}
	return path.IsValidPathSegmentName(name)
}

func nothing(bool) {}

func (a *API) allocate(ctx context.Context, st *resource.Strategy, obj, old resource.Object, dryRun bool) (func(bool), error) {
	if st.Allocate == nil {
		return nothing, nil
	}
	done, err := st.Allocate(ctx, &Backend{a}, obj, old, dryRun)
	if err != nil {
		return nil, err
	}
	if done == nil {
		done = nothing
	}
	return done, nil
}

// wipe removes what only the server may say.
func wipe(obj resource.Object) {
	obj.SetDeletionTimestamp(nil)
	obj.SetDeletionGracePeriodSeconds(nil)
	obj.SetUID("")
	obj.SetCreationTimestamp(metav1.Time{})
	obj.SetSelfLink("")
}

// alteration is one change of a stored object.
type alteration struct {
	kind     *Kind
	strategy *resource.Strategy
	ns, name string
	uid      types.UID // that the object must have; empty: any
	dryRun   bool
	applied  bool                    // a configuration: managed fields are not given up to make room
	said     schema.GroupVersionKind // what the new object calls itself, if that is not its kind
	// allowCreate lets make be called with nil when the object does not exist.
	allowCreate bool
	// make returns the new object, which is its own; old is shared, nil when creating. It is called again after a conflict.
	make func(ctx context.Context, old *watchcache.Forms) (resource.Object, error)
	// admit is mutating admission of what was made; nil: none.
	admit func(ctx context.Context, obj, old resource.Object) (resource.Object, error)
	// validate and validateCreate are validating admission; nil: none.
	validate       func(ctx context.Context, obj, old resource.Object) error
	validateCreate func(ctx context.Context, obj resource.Object) error
	ended          func(err error) // as in creation
}

// alter changes an object, again when others changed it meanwhile, until it is stored, refused, or ctx ends.
func (a *API) alter(ctx context.Context, c *alteration) (f *watchcache.Forms, created bool, err error) {
	key := c.kind.Key(c.ns, c.name)
	for {
		rec, _, err := a.Store.Get(ctx, key)
		if err != nil {
			return nil, false, err
		}
		if rec == nil {
			if !c.allowCreate && !c.strategy.CreateOnUpdate {
				return nil, false, apierrors.NewNotFound(c.kind.GroupResource(), c.name)
			}
			f, err := a.alterCreate(ctx, c)
			if apierrors.IsAlreadyExists(err) && ctx.Err() == nil && !c.dryRun {
				continue
			}
			return f, err == nil, err
		}
		f, err := a.alterOnce(ctx, c, rec)
		if c.ended != nil {
			c.ended(err)
		}
		var conflict *store.ConflictError
		if errors.As(err, &conflict) {
			if ctx.Err() != nil {
				return nil, false, ctx.Err()
			}
			continue
		}
		return f, false, err
	}
}

func (a *API) alterCreate(ctx context.Context, c *alteration) (*watchcache.Forms, error) {
	if c.uid != "" {
		return nil, apierrors.NewConflict(c.kind.GroupResource(), c.name, precondition(c.kind.Key(c.ns, c.name), "UID", string(c.uid), ""))
	}
	obj, err := c.make(ctx, nil)
	if err != nil {
		return nil, err
	}
	if obj.GetUID() != "" {
		return nil, apierrors.NewConflict(c.kind.GroupResource(), c.name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", obj.GetUID()))
	}
	wipe(obj)
	obj.SetResourceVersion("") // one that an update or a patch names is not looked at when there is nothing yet
	return a.insertNamed(ctx, &creation{kind: c.kind, strategy: &c.kind.Strategy, ns: c.ns, dryRun: c.dryRun, applied: c.applied, validate: c.validateCreate, ended: c.ended}, obj)
}

func (a *API) alterOnce(ctx context.Context, c *alteration, rec *store.Record) (*watchcache.Forms, error) {
	k, st := c.kind, c.strategy
	cur, err := k.Forms(rec)
	if err != nil {
		return nil, err
	}
	if c.uid != "" && c.uid != cur.Hub.GetUID() {
		key := rec.Key
		if c.dryRun {
			key = strings.TrimPrefix(key, "/registry") // upstream's dry runs check above its store
		}
		return nil, apierrors.NewConflict(k.GroupResource(), c.name, precondition(key, "UID", string(c.uid), string(cur.Hub.GetUID())))
	}
	obj, err := c.make(ctx, cur)
	if err != nil {
		return nil, err
	}
	old := cur.Hub
	if k.Strategy.Match != nil {
		if old, err = k.Strategy.Match(ctx, obj, old); err != nil {
			return nil, err
		}
	}
	if st.Authorize != nil {
		if err := st.Authorize(ctx, obj, old); err != nil {
			return nil, err
		}
	}
	if rv := obj.GetResourceVersion(); rv == "" || rv == "0" {
		if st.Conditional || k.Strategy.Conditional {
			return nil, apierrors.NewInvalid(schema.GroupKind{Group: k.Group, Kind: k.Resource}, c.name,
				field.ErrorList{field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0), "must be specified for an update")})
		}
		obj.SetResourceVersion(cur.Hub.GetResourceVersion())
	} else if want, err := revision(rv); err != nil {
		return nil, errors.Unwrap(err)
	} else if want != rec.Revision {
		return nil, apierrors.NewConflict(k.GroupResource(), c.name, errors.New(optimisticLock))
	}
	if c.said.Kind != "" {
		return nil, otherKind(c.said, k.Kind, c.name)
	}
	done, err := a.allocate(ctx, st, obj, old, c.dryRun)
	if err != nil {
		return nil, err
	}
	committed := false
	defer func() { done(committed) }()
	if a.uninitialized(k, st, cur.Hub) {
		err = a.beforeInitialize(ctx, k, st, obj, old)
	} else {
		err = a.beforeUpdate(ctx, k, st, obj, old)
	}
	if err != nil {
		return nil, err
	}
	keepTimes(obj, old)
	if c.validate != nil {
		if err := c.validate(ctx, obj, old); err != nil {
			return nil, err
		}
	}
	if finished(k, obj, cur.Hub) {
		if !c.dryRun {
			if _, err := a.remove(ctx, k, rec, cur.Hub); err != nil {
				return nil, err
			}
		}
		committed = true
		return k.NewForms(obj), nil
	}
	now, f, err := a.replaceRecord(ctx, k, rec, cur, obj, writing{dryRun: c.dryRun, applied: c.applied})
	committed = err == nil && !c.dryRun
	if committed && a.rejected(f.Hub) {
		err = a.reject(ctx, k, now, f)
	}
	return f, err
}

// writing is how an object is to be stored in the place of another.
type writing struct {
	dryRun  bool
	applied bool // it is an applied configuration, whose managed fields are not given up to make room
	exact   bool // it is what would be read back, see [resource.Backend]
}

// replaceRecord stores obj in the place of rec, unless it says the same, and returns the record that is stored afterwards.
func (a *API) replaceRecord(ctx context.Context, k *Kind, rec *store.Record, cur *watchcache.Forms, obj resource.Object, how writing) (*store.Record, *watchcache.Forms, error) {
	rv := obj.GetResourceVersion()
	obj.SetResourceVersion("")
	if !how.dryRun {
		obj.SetSelfLink("")
	}
	data, err := k.Codec.Encode(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s: %w", rec.Key, err)
	}
	if bytes.Equal(data, rec.Value) && (how.dryRun || !a.Store.Stale(ctx, rec)) {
		return rec, cur, nil
	}
	if how.dryRun {
		if obj, err = k.Decode(&store.Record{Key: rec.Key, Value: data, Revision: rec.Revision}); err != nil {
			return nil, nil, err
		}
		obj.SetResourceVersion(rv)
		return rec, k.NewForms(obj), nil
	}
	if tooLarge(rec.Key, data, rec.Revision) != nil {
		if data, err = (stored{k, rec.Key}).encode(obj, rec.Revision, !how.applied); err != nil {
			return nil, nil, err
		}
		how.exact = false
	}
	tr := explain.From(ctx)
	tr.Enter(explain.Store)
	begun := time.Now()
	op := store.Op{Key: rec.Key, Expect: rec.Revision, Value: data, TTL: ttlOf(k, obj)}
	if how.exact {
		op.Made = func(r *store.Record) {
			obj.SetResourceVersion(strconv.FormatInt(r.Revision, 10))
			k.Attach(r, obj)
		}
	}
	now, err := a.Store.Put(ctx, op)
	request.TrackStorageLatency(ctx, time.Since(begun))
	if err != nil {
		return nil, nil, err
	}
	tr.Committed(k.Descriptor, cur.Hub, obj, rec.Value, data, now.Revision)
	a.applied(ctx, k, now.Revision)
	f, err := k.Forms(now)
	return now, f, err
}

func (a *API) beforeUpdate(ctx context.Context, k *Kind, st *resource.Strategy, obj, old resource.Object) error {
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
		for _, w := range st.Warn(ctx, obj, old) {
			warning.AddWarning(ctx, "", w)
		}
	}
	return nil
}

// together joins what is wrong with any object's metadata and what a kind found. Nothing is said twice: what the kind's
// declared rules say wins over the same from outside of them, and what comes first over what comes later. Kinds without
// declared rules repeat themselves.
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

// keepTimes gives managed-field entries their old times if a write changes nothing, so that it is no change. Where it does
// change something, the entry of who wrote it has the time of the write, whether or not its fields are the same.
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

// remove deletes a record, and releases what the object held.
func (a *API) remove(ctx context.Context, k *Kind, rec *store.Record, obj resource.Object) (revision int64, err error) {
	tr := explain.From(ctx)
	tr.Enter(explain.Store)
	begun := time.Now()
	revision, err = a.Store.Delete(ctx, rec.Key, rec.Revision)
	request.TrackStorageLatency(ctx, time.Since(begun))
	if err != nil {
		return 0, err
	}
	tr.Committed(k.Descriptor, obj, nil, nil, nil, revision)
	a.applied(ctx, k, revision)
	if k.Strategy.Allocate != nil {
		// The object is gone, so what it held is released even when the client has disconnected.
		done, err := k.Strategy.Allocate(context.WithoutCancel(ctx), &Backend{a}, nil, obj, false)
		if err != nil {
			a.Log.ErrorContext(ctx, "release what a deleted object held", "key", rec.Key, "error", err)
		} else if done != nil {
			done(true)
		}
	}
	return revision, nil
}

func precondition(key, what, want, is string) error {
	return invalidObject(key, fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", what, want, what, is))
}

// invalidObject is how a store that is not our own words what it refuses.
func invalidObject(key, what string) error {
	return fmt.Errorf("StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", key, what)
}

func ttlOf(k *Kind, obj resource.Object) time.Duration {
	if k.TTL == nil {
		return 0
	}
	return time.Duration(k.TTL(obj)) * time.Second
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
