// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// writeOptions is how an object is to be stored in the place of another.
type writeOptions struct {
	dryRun  bool
	applied bool // it was made by server-side apply: managed fields are not dropped to make room
	exact   bool // it is what would be read back, see [resource.Backend]
}

// replace stores obj in the place of rec unless both are equal, and returns the record that is stored afterwards.
func (w *Writer) replace(ctx context.Context, k *Kind, rec *store.Record, cur *watchcache.CachedObject, obj resource.Object,
	how writeOptions,
) (*store.Record, *watchcache.CachedObject, error) {
	rv := obj.GetResourceVersion()
	obj.SetResourceVersion("")
	if !how.dryRun {
		obj.SetSelfLink("")
	}
	data, err := k.Codec.Encode(obj)
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s: %w", rec.Key, err)
	}
	if bytes.Equal(data, rec.Value) && (how.dryRun || !w.store.Stale(ctx, rec)) {
		return rec, cur, nil
	}
	if how.dryRun {
		if obj, err = k.Decode(&store.Record{Key: rec.Key, Value: data, Revision: rec.Revision}); err != nil {
			return nil, nil, err
		}
		obj.SetResourceVersion(rv)
		return rec, k.NewCachedObject(obj), nil
	}
	if checkSize(rec.Key, data, rec.Revision) != nil {
		if data, err = encode(k, rec.Key, obj, rec.Revision, !how.applied); err != nil {
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
	back := flowcontrol.Away(ctx)
	record, err := w.store.Put(ctx, op)
	back()
	request.TrackStorageLatency(ctx, time.Since(begun))
	if err != nil {
		return nil, nil, err
	}
	tr.Committed(k.Descriptor, cur.Hub, obj, rec.Value, data, record.Revision)
	w.settle(ctx, k, record.Revision)
	f, err := k.Cached(record)
	return record, f, err
}

// remove deletes a record, and releases what the object held.
func (w *Writer) remove(ctx context.Context, k *Kind, rec *store.Record, obj resource.Object) (revision int64, err error) {
	tr := explain.From(ctx)
	tr.Enter(explain.Store)
	begun := time.Now()
	back := flowcontrol.Away(ctx)
	revision, err = w.store.Delete(ctx, rec.Key, rec.Revision)
	back()
	request.TrackStorageLatency(ctx, time.Since(begun))
	if err != nil {
		return 0, err
	}
	tr.Committed(k.Descriptor, obj, nil, nil, nil, revision)
	w.settle(ctx, k, revision)
	if k.Strategy.Allocate != nil {
		// The object is gone, so what it held is released even when the client has disconnected.
		done, err := k.Strategy.Allocate(context.WithoutCancel(ctx), w.backend, nil, obj, false)
		if err != nil {
			w.log.ErrorContext(ctx, "Could not release the allocations of a deleted object", "key", rec.Key, "error", err)
		} else if done != nil {
			done(true)
		}
	}
	return revision, nil
}

func ttlOf(k *Kind, obj resource.Object) time.Duration {
	if k.TTL == nil {
		return 0
	}
	return time.Duration(k.TTL(obj)) * time.Second
}
