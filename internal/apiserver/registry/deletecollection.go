// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/store"
)

// Few objects are deleted in their order; many by some workers at once, so that their commits share the disk's time.
const (
	deletedInOrder = 64
	deleteWorkers  = 16
)

// DeleteCollection deletes objects of a kind that a list has found, and stops at the first that it may not delete. One that is
// gone meanwhile is as wished.
func (w *Writer) DeleteCollection(
	ctx context.Context, k *Kind, records []*store.Record, deletion func(namespace, name string) *Deletion,
) error {
	one := func(ctx context.Context, rec *store.Record) error {
		f, err := k.Cached(rec)
		if err != nil {
			return err
		}
		if _, _, err = w.Delete(ctx, deletion(f.Hub.GetNamespace(), f.Hub.GetName())); apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	ordered := records[:min(len(records), deletedInOrder)]
	for _, rec := range ordered {
		if err := one(ctx, rec); err != nil {
			return err
		}
	}
	rest := records[len(ordered):]
	if len(rest) == 0 {
		return nil
	}
	workers, working := errgroup.WithContext(ctx)
	workers.SetLimit(deleteWorkers)
	for _, rec := range rest {
		if working.Err() != nil {
			break
		}
		workers.Go(func() error { return one(working, rec) })
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}
