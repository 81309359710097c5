// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"time"
)

// MostLag is how old a state is at most that a read returns whose context [Store.AllowLag] made.
const MostLag = time.Second

// StaleReader is an [Engine] that asks another process for its newest state, and has a copy of a recent one. With a context for which
// [LagAllowed] is true, its Get, and its Range at revision 0, may read that copy if it is not older than [MostLag] and has every commit
// that this engine has acknowledged.
type StaleReader interface {
	// Lags marks the engine. It does nothing.
	Lags()
}

type lagKey struct{}

// AllowLag returns a context with which Get and Range may return a state that is up to [MostLag] old, but has all that this store has
// acknowledged; ctx itself if the engine always has the newest state. Use it for a read that the condition of a later commit verifies, and
// for a read that kube-apiserver serves from an informer's cache.
func (s *Store) AllowLag(ctx context.Context) context.Context {
	if !s.lags {
		return ctx
	}
	return context.WithValue(ctx, lagKey{}, true)
}

// LagAllowed reports whether [Store.AllowLag] made a context, or one that it is derived from.
func LagAllowed(ctx context.Context) bool {
	allowed, _ := ctx.Value(lagKey{}).(bool)
	return allowed
}
