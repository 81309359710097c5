// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

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
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// uninitialized knows the objects that wait for initializers. Nil is valid and knows none.
type uninitialized struct {
	kinds sync.Map    // roots of the keys of kinds of which an object has waited
	known atomic.Bool // whether kinds is complete for what was stored before the server started
}

// among reports whether an object of the kind may be waiting.
func (u *uninitialized) among(k *Kind) bool {
	if u == nil {
		return false
	}
	if !u.known.Load() {
		return true
	}
	_, ok := u.kinds.Load(k.Root)
	return ok
}

// note remembers that an object of the kind waits, if it does.
func (u *uninitialized) note(k *Kind, obj resource.Object) {
	if u != nil && v1alpha1.Uninitialized(obj) {
		u.kinds.Store(k.Root, nil)
	}
}

// changed reports whether a write changes an object that waits, rather than a part of it that has a strategy of its own.
func (u *uninitialized) changed(k *Kind, st *resource.Strategy, old resource.Object) bool {
	return u != nil && st == &k.Strategy && Initializing(old)
}

// rejected reports whether an initializer wrote into an object that it must not be.
func (u *uninitialized) rejected(obj resource.Object) bool {
	if u == nil {
		return false
	}
	i, err := v1alpha1.InitializersOf(obj)
	return err == nil && i != nil && i.Result != nil
}

// Initializing reports whether an object waits for initializers, and is not being deleted; false for nil.
func Initializing(obj resource.Object) bool {
	return obj != nil && obj.GetDeletionTimestamp() == nil && v1alpha1.Uninitialized(obj)
}

// The annotation's key is looked for by its end, whose first byte is rare in what is stored.
var heldGroup, heldMark = []byte(v1alpha1.Group), []byte(strings.TrimPrefix(v1alpha1.InitializersAnnotation, v1alpha1.Group))

// marked reports whether a stored object may wait: whether it has the annotation's key somewhere, other than after a colon, where
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

// held reports whether a stored object is not initialised yet.
func held(k *Kind, rec *store.Record) (bool, error) {
	if !marked(rec.Value) {
		return false, nil
	}
	f, err := k.Cached(rec)
	if err != nil {
		return false, err
	}
	return v1alpha1.Uninitialized(f.Hub), nil
}

// beforeInitialize prepares and validates a change of an object that waits as a create.
func beforeInitialize(ctx context.Context, k *Kind, st *resource.Strategy, obj, old resource.Object) error {
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

// reject deletes a rejected object. No client has seen it, so its finalizers do not block the deletion.
func (w *Writer) reject(ctx context.Context, k *Kind, rec *store.Record, f *watchcache.CachedObject) error {
	_, err := w.remove(context.WithoutCancel(ctx), k, rec, f.Hub)
	var conflict *store.ConflictError
	if errors.As(err, &conflict) {
		return nil // another has done it, or is about to
	}
	return err
}

// AwaitInitialized waits for an object that was just created to be initialised, and returns it as it is then. If ctx ends before
// that, the error names what the object waits for.
func (rd *Reader) AwaitInitialized(ctx context.Context, k *Kind, f *watchcache.CachedObject) (*watchcache.CachedObject, error) {
	after, err := ParseResourceVersion(f.Hub.GetResourceVersion())
	if err != nil {
		return nil, err
	}
	key := k.Key(f.Hub.GetNamespace(), f.Hub.GetName())
	w, err := rd.store.Watch(ctx, key, after)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", key, err)
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, rd.stillWaits(k, f.Hub)
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
			if f, err = k.Cached(e.Record); err != nil {
				return nil, err
			}
			if !v1alpha1.Uninitialized(f.Hub) {
				return f, nil
			}
		}
	}
}

// gone is the answer to a create whose object was deleted before it was initialised: what its initializer said, if it rejected it.
func gone(obj resource.Object) error {
	if i, err := v1alpha1.InitializersOf(obj); err == nil && i != nil && i.Result != nil {
		return &apierrors.StatusError{ErrStatus: *i.Result}
	}
	return apierrors.NewInternalError(errors.New("object deleted while waiting for creation")) // upstream's words
}

// stillWaits is the answer to a create whose time is over before the object is initialised. It names where things are.
func (rd *Reader) stillWaits(k *Kind, obj resource.Object) error {
	i, err := v1alpha1.InitializersOf(obj)
	if err != nil || i == nil {
		return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	if i.Result != nil {
		return gone(obj)
	}
	since := max(rd.now().Sub(i.Since.Time), 0).Round(time.Second)
	return apierrors.NewTimeoutError(fmt.Sprintf("server has timed out waiting for the initialization of %s %s: it is stored, "+
		"and has waited for initializer %s for %v; %d to come in all",
		k.GroupResource(), obj.GetName(), i.Pending[0].Name, since, len(i.Pending)), 0)
}
