// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/store"
)

// DeleteUnreadable deletes a record whose value cannot be decoded. It keeps one that can: an ordinary deletion is the way for it.
func (w *Writer) DeleteUnreadable(ctx context.Context, d *Deletion) error {
	key := d.Kind.Key(d.Namespace, d.Name)
	for {
		rec, _, err := w.store.Get(ctx, key)
		if rec == nil && err == nil {
			return apierrors.NewNotFound(d.Kind.GroupResource(), d.Name)
		}
		if err == nil {
			_, err = d.Kind.Cached(rec)
		}
		var unread *store.UnreadableError
		switch {
		case err == nil:
			return apierrors.NewConflict(d.Kind.GroupResource(), d.Name,
				invalidObject(key, "unsafe deletion is not allowed because the object is decodable from storage"))
		case !errors.As(err, &unread):
			return err
		}
		if len(d.Options.DryRun) > 0 {
			return nil
		}
		revision, err := w.store.Delete(ctx, key, unread.Revision)
		if conflict := (*store.ConflictError)(nil); errors.As(err, &conflict) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			w.settle(ctx, d.Kind, revision)
		}
		return err
	}
}
