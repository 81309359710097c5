// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"time"

	"github.com/mortise-dev/mortise/store"
)

// compactInterval is kube-apiserver's default of --etcd-compaction-interval.
const compactInterval = 5 * time.Minute

// compact periodically removes history that is older than an interval: clients can read revisions that are one to two
// intervals old. This is part of the API's contract, since paginated lists must restart when their revision was
// compacted. It also bounds the memory.
//
// Servers that share a store share its compaction too.
func (s *Server) compact(ctx context.Context) {
	shared, isShared := store.Ability[store.Compactor](s.opts.Store.Engine())
	t := time.NewTicker(compactInterval)
	defer t.Stop()
	before := s.opts.Store.Revision()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if isShared {
			if err := shared.CompactShared(ctx); err != nil && ctx.Err() == nil {
				s.opts.Log.ErrorContext(ctx, "Could not compact the history of the store", "error", err)
			}
			continue
		}
		now := s.opts.Store.Revision()
		if before > s.opts.Store.Compacted() {
			if err := s.opts.Store.Compact(ctx, before); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrCompacted) {
				s.opts.Log.ErrorContext(ctx, "Could not compact the history of the store", "revision", before, "error", err)
			}
		}
		before = now
	}
}
