// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericvalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Initialization is what [Options] say of objects that wait for initializers. Nil: no object does.
type Initialization struct {
	// Fill are the plug-ins that complete a new object, and Check those that judge one. An object that waits is changed as if
	// it were created anew: what nobody has seen yet may still become anything, and must in the end be what may be created.
	Fill, Check admit.Chain
	// Serving ends when the server is told to end: creates that wait are answered then, rather than hold it up.
	Serving context.Context

	holding sync.Map    // roots of the keys of kinds of which an object has waited
	known   atomic.Bool // whether holding says so of what was stored before the server started
}

// holds says whether an object of the kind may be waiting.
func (i *Initialization) holds(k *Kind) bool {
	if !i.known.Load() {
		return true
	}
	_, ok := i.holding.Load(k.Root)
	return ok
}

// holdsOne remembers that an object of the kind waits, if it does.
func (a *API) holdsOne(k *Kind, obj resource.Object) {
	if i := a.Initialization; i != nil && v1alpha1.Uninitialized(obj) {
		i.holding.Store(k.Root, nil)
	}
}

// The annotation's key is looked for by its end, whose first byte is rare in what is stored.
var heldGroup, heldMark = []byte(v1alpha1.Group), []byte(strings.TrimPrefix(v1alpha1.InitializersAnnotation, v1alpha1.Group))

// marked says whether a stored object may wait: whether it has the annotation's key somewhere, other than after a colon, where
// the names of managed fields have it. Most objects need not be decoded for that.
func marked(value []byte) bool {
	for {
		i := bytes.Index(value, heldMark)
		if i < 0 {
			return false
		}
		if before, ok := bytes.CutSuffix(value[:i], heldGroup); ok && !bytes.HasSuffix(before, colon) {
			return true
		}
		value = value[i+len(heldMark):]
	}
}

var colon = []byte{':'}

// held says whether a stored object is not initialised yet.
func held(k *Kind, rec *store.Record) (bool, error) {
	if !marked(rec.Value) {
		return false, nil
	}
	f, err := k.Forms(rec)
	if err != nil {
		return false, err
	}
	return v1alpha1.Uninitialized(f.Hub), nil
}

// hides says whether a client is shown initialised objects only.
func (q *req) hides() bool {
	return q.Initialization != nil && !q.includesUninitialized()
}

func (q *req) includesUninitialized() bool {
	v := q.query()
	return v.Has(v1alpha1.IncludeUninitialized) && truth(v.Get(v1alpha1.IncludeUninitialized))
}

// shown is how many of the records that follow one are initialised, of n that there are.
func (a *API) shown(ctx context.Context, k *Kind, r store.Range, n int64) (int64, error) {
	if !a.Initialization.holds(k) {
		return n, nil
	}
	r.Limit = 0
	p, err := a.Store.Range(ctx, r)
	if err != nil {
		return 0, err
	}
	n = 0
	for _, rec := range p.Records {
		h, err := held(k, rec)
		if err != nil {
			return 0, err
		}
		if !h {
			n++
		}
	}
	return n, nil
}

// initialized waits for an object that was just created to be initialised, if it has to be, and returns it as it is then. It
// holds no seat meanwhile, so that initializers find one.
func (q *req) initialized(ctx context.Context, f *watchcache.Forms, dryRun bool) (*watchcache.Forms, error) {
	if q.Initialization == nil || dryRun || !v1alpha1.Uninitialized(f.Hub) || q.includesUninitialized() {
		return f, nil
	}
	flowcontrol.Began(q.r.Context())
	after, err := revision(f.Hub.GetResourceVersion())
	if err != nil {
		return nil, err
	}
	ctx, cancel := beforeEnd(ctx)
	defer cancel()
	defer context.AfterFunc(q.Initialization.Serving, cancel)()
	key := q.kind.Key(f.Hub.GetNamespace(), f.Hub.GetName())
	w, err := q.Store.Watch(ctx, key, after)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", key, err)
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, q.stillWaits(f.Hub)
		case err != nil:
			return nil, err
		}
		for _, e := range batch.Events {
			switch {
			case e.Key != key:
				continue
			case e.Record == nil:
				return nil, gone(f.Hub)
			}
			if f, err = q.kind.Forms(e.Record); err != nil {
				return nil, err
			}
			if !v1alpha1.Uninitialized(f.Hub) {
				return f, nil
			}
		}
	}
}

// answerTime is what a create that waits leaves of its request's time to be answered in.
const answerTime = time.Second

// beforeEnd ends a little before ctx does, while the request can still be answered.
func beforeEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(answerTime, time.Until(end)/4)))
}

// gone is the answer to a create whose object was deleted before it was initialised: what its initializer said, if it rejected it.
func gone(obj resource.Object) error {
	if i, err := v1alpha1.InitializersOf(obj); err == nil && i != nil && i.Result != nil {
		return &apierrors.StatusError{ErrStatus: *i.Result}
	}
	return apierrors.NewInternalError(errors.New("object deleted while waiting for creation")) // upstream's words
}

// stillWaits is the answer to a create whose time is over before the object is initialised. It names where things are.
func (q *req) stillWaits(obj resource.Object) error {
	i, err := v1alpha1.InitializersOf(obj)
	if err != nil || i == nil {
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	if i.Result != nil {
		return gone(obj)
	}
	since := max(q.Now().Sub(i.Since.Time), 0).Round(time.Second)
	return apierrors.NewTimeoutError(fmt.Sprintf("server has timed out waiting for the initialization of %s %s: it is stored, and has waited for initializer %s for %v; %d to come in all",
		q.gr(), obj.GetName(), i.Pending[0].Name, since, len(i.Pending)), 0)
}

// uninitialized says whether a write changes an object that waits, by itself.
func (a *API) uninitialized(k *Kind, st *resource.Strategy, old resource.Object) bool {
	return a.Initialization != nil && old != nil && st == &k.Strategy && old.GetDeletionTimestamp() == nil && v1alpha1.Uninitialized(old)
}

// beforeInitialize prepares and validates a change of an object that waits as a create.
func (a *API) beforeInitialize(ctx context.Context, k *Kind, st *resource.Strategy, obj, old resource.Object) error {
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	obj.SetCreationTimestamp(old.GetCreationTimestamp())
	if st.PrepareCreate != nil {
		st.PrepareCreate(ctx, obj)
	}
	meta := field.NewPath("metadata")
	errs := genericvalidation.ValidateObjectMetaAccessor(obj, k.Namespaced, pathSegment, meta)
	errs = append(errs, genericvalidation.ValidateObjectMetaAccessorUpdate(obj, old, meta)...)
	if st.Validate != nil {
		errs = together(ctx, errs, st.Validate(ctx, obj), k.Strategy.Undeclared)
	}
	if len(errs) > 0 {
		return invalid(k, obj, errs)
	}
	if st.Warn != nil {
		for _, text := range st.Warn(ctx, obj, nil) {
			warning.AddWarning(ctx, "", text)
		}
	}
	return nil
}

// refill has the plug-ins that complete new objects complete one that an initializer has changed.
func (q *req) refill(ctx context.Context, obj, old resource.Object, create runtime.Object, dryRun bool) (resource.Object, error) {
	if q.sub != nil || !q.uninitialized(q.kind, &q.kind.Strategy, old) {
		return obj, nil
	}
	at := q.attributes(admit.Create, obj, nil, create, dryRun)
	err := q.Initialization.Fill.Mutate(ctx, &Backend{q.API}, at)
	return at.Object, err
}

// recheck has those that judge new objects judge one that an initializer has changed.
func (q *req) recheck(ctx context.Context, obj, old resource.Object, create runtime.Object, dryRun bool) error {
	if q.sub != nil || !q.uninitialized(q.kind, &q.kind.Strategy, old) {
		return nil
	}
	return q.Initialization.Check.Validate(ctx, &Backend{q.API}, q.attributes(admit.Create, obj, nil, create, dryRun))
}

// reject takes an object away into which it was written why it must not be. Nobody has seen it, so that its finalizers hold
// nothing back.
func (a *API) reject(ctx context.Context, k *Kind, rec *store.Record, f *watchcache.Forms) error {
	_, err := a.remove(context.WithoutCancel(ctx), k, rec, f.Hub)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return nil // another has done it, or is about to
	}
	return err
}

// rejected says whether it is written into an object that it must not be.
func (a *API) rejected(obj resource.Object) bool {
	if a.Initialization == nil {
		return false
	}
	i, err := v1alpha1.InitializersOf(obj)
	return err == nil && i != nil && i.Result != nil
}
