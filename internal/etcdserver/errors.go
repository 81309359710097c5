// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortise-dev/mortise/store"
)

// translate returns what etcd answers for an error of the store.
func translate(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrCompacted):
		return rpctypes.ErrGRPCCompacted
	case errors.Is(err, store.ErrFuture):
		return rpctypes.ErrGRPCFutureRev
	case errors.Is(err, store.ErrNoSpace):
		return rpctypes.ErrGRPCNoSpace
	case errors.Is(err, store.ErrTooLarge):
		return rpctypes.ErrGRPCRequestTooLarge
	case errors.Is(err, store.ErrClosed):
		return rpctypes.ErrGRPCStopped
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCDeadlineExceeded
	case errors.Is(err, store.ErrInvalid):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

// beyond returns the error of a request that this server cannot carry out, though etcd could.
func beyond(what string) error { return status.Error(codes.Unimplemented, "mortise: "+what) }
