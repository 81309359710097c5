// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortise-dev/mortise/store"
)

// firstPause and lastPause bound the back-off of a call that failed.
const firstPause, lastPause = 20 * time.Millisecond, time.Second

// classes are the store's classes of etcd's errors.
var classes = []struct{ theirs, ours error }{
	{rpctypes.ErrNoSpace, errFull},
	{rpctypes.ErrRequestTooLarge, store.ErrTooLarge},
	{rpctypes.ErrTooManyOps, store.ErrTooLarge},
	{rpctypes.ErrCompacted, store.ErrCompacted},
	{rpctypes.ErrFutureRev, store.ErrFuture},
	{rpctypes.ErrCorrupt, store.ErrCorrupt},
}

// errFull is etcd's refusal of writes with what ends it.
var errFull = fmt.Errorf("%w: etcd's alarm NOSPACE refuses writes; compact and defragment its members, then run `etcdctl alarm disarm`",
	store.ErrNoSpace)

// translate returns an error of the client in the store's words.
func translate(err error) error {
	if err == nil {
		return nil
	}
	known := rpctypes.Error(err)
	for _, c := range classes {
		if errors.Is(known, c.theirs) {
			return fmt.Errorf("%w: %w", c.ours, err)
		}
	}
	if code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max") { // gRPC's limit, beyond etcd's own
		return fmt.Errorf("%w: %w", store.ErrTooLarge, err)
	}
	return err
}

// code returns the gRPC code of an error.
func code(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return codes.DeadlineExceeded
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if s, ok := status.FromError(e); ok {
			return s.Code()
		}
	}
	return codes.Unknown
}

// final reports whether the same call would fail again.
func final(err error) bool {
	for _, c := range classes {
		if errors.Is(err, c.ours) {
			return true
		}
	}
	return slices.Contains([]codes.Code{
		codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented, codes.OutOfRange,
	}, code(err))
}

// lost reports whether the call may have been carried out, though it failed.
func lost(err error) bool {
	if errors.Is(err, errUnsent) {
		return false
	}
	known := rpctypes.Error(err)
	for _, refusal := range []error{rpctypes.ErrNoLeader, rpctypes.ErrNotLeader, rpctypes.ErrTooManyRequests} {
		if errors.Is(known, refusal) {
			return false
		}
	}
	return true
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
