// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

const (
	generateAttempts = 8
	randomSuffix     = 5
	longestGenerated = 63 - randomSuffix
)

// Writer creates, updates and deletes objects.
type Writer struct {
	store   *store.Store
	log     *slog.Logger
	now     func() time.Time
	applied func(ctx context.Context, r schema.GroupResource, revision int64) // see [Options]
	backend *Backend                                                          // which strategies allocate with
	waiting *uninitialized                                                    // nil: no object waits for initializers
}

// settle waits until what the server makes of a kind's objects is true to the store as of a revision. It waits also for a
// client that has disconnected: a seat of flow control is free again when the request has had all its effects.
func (w *Writer) settle(ctx context.Context, k *Kind, revision int64) {
	if w.applied != nil {
		w.applied(context.WithoutCancel(ctx), k.GroupResource(), revision)
	}
}

// Creation is one new object on its way into the store.
type Creation struct {
	Kind      *Kind
	Strategy  *resource.Strategy
	Namespace string
	DryRun    bool
	Applied   bool // by server-side apply: its managed fields are not given up to make room
	// Validate is validating admission; nil: none.
	Validate func(ctx context.Context, obj resource.Object) error
	// Ended is called with the outcome of an object that Validate accepted; nil: no call.
	Ended func(err error)
}

// Create stores a new object. It draws a name if there is only the beginning of one, again if that is taken.
func (w *Writer) Create(ctx context.Context, c *Creation, obj resource.Object) (*watchcache.CachedObject, error) {
	if obj.GetName() != "" || obj.GetGenerateName() == "" {
		f, err := w.createNamed(ctx, c, obj)
		if apierrors.IsAlreadyExists(err) && obj.GetGenerateName() != "" {
			err = apierrors.NewGenerateNameConflict(c.Kind.GroupResource(), obj.GetName(), 1)
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
		f, err := w.createNamed(ctx, c, o)
		if err == nil || !apierrors.IsAlreadyExists(err) {
			return f, err
		}
		if attempt == generateAttempts {
			return nil, apierrors.NewGenerateNameConflict(c.Kind.GroupResource(), o.GetName(), 1)
		}
	}
}

func (w *Writer) createNamed(ctx context.Context, c *Creation, obj resource.Object) (*watchcache.CachedObject, error) {
	f, err := w.createOnce(ctx, c, obj)
	if c.Ended != nil {
		c.Ended(err)
	}
	return f, err
}

func (w *Writer) createOnce(ctx context.Context, c *Creation, obj resource.Object) (*watchcache.CachedObject, error) {
	k, st := c.Kind, c.Strategy
	obj.SetCreationTimestamp(metav1.NewTime(w.now()).Rfc3339Copy())
	obj.SetUID(uuid.NewUUID())
	if st.Authorize != nil {
		if err := st.Authorize(ctx, obj, nil); err != nil {
			return nil, err
		}
	}
	done, err := w.allocate(ctx, st, obj, nil, c.DryRun)
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
		for _, text := range st.Warn(ctx, obj, nil) {
			warning.AddWarning(ctx, "", text)
		}
	}
	if c.Validate != nil {
		if err := c.Validate(ctx, obj); err != nil {
			return nil, err
		}
	}
	key := k.Key(c.Namespace, obj.GetName())
	if c.DryRun {
		rec, _, err := w.store.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		if rec != nil {
			return nil, taken(k, obj.GetName(), rec)
		}
		return k.Unstored(key, obj)
	}
	if rv, err := ParseResourceVersion(obj.GetResourceVersion()); err == nil && rv != 0 {
		return nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	obj.SetResourceVersion("")
	data, err := encode(k, key, obj, 0, !c.Applied)
	if err != nil {
		return nil, err
	}
	explain.From(ctx).Enter(explain.Store)
	w.waiting.note(k, obj)
	op := store.Op{Key: key, Value: data, TTL: ttlOf(k, obj)}
	if k.ReadBack(obj) {
		op.Made = func(r *store.Record) {
			obj.SetResourceVersion(strconv.FormatInt(r.Revision, 10))
			k.AttachCreated(r, obj)
		}
	}
	begun := time.Now()
	back := flowcontrol.Away(ctx)
	rec, err := w.store.Put(ctx, op)
	back()
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
	w.settle(ctx, k, rec.Revision)
	return k.Created(rec)
}

// taken is the 409 of a name that an object has, which may be on its way out.
func taken(k *Kind, name string, by *store.Record) error {
	e := apierrors.NewAlreadyExists(k.GroupResource(), name)
	if by == nil {
		return e
	}
	if f, err := k.Cached(by); err == nil && f.Hub.GetDeletionTimestamp() != nil {
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

func (w *Writer) allocate(ctx context.Context, st *resource.Strategy, obj, old resource.Object, dryRun bool) (func(bool), error) {
	if st.Allocate == nil {
		return nothing, nil
	}
	done, err := st.Allocate(ctx, w.backend, obj, old, dryRun)
	if err != nil {
		return nil, err
	}
	if done == nil {
		done = nothing
	}
	return done, nil
}
