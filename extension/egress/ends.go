// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// endsQuietly is a context whose logger takes the end of a connection for no error. The proxies of streams log each read and write
// that fails, and every stream ends with one: its other end closes the connection.
func endsQuietly(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	sink := logger.GetSink()
	if _, quiet := sink.(endSink); quiet || sink == nil {
		return ctx
	}
	return klog.NewContext(ctx, logger.WithSink(endSink{sink}))
}

// ended reports whether an error is that of a connection, or a pipe, that one of its ends has closed.
func ended(err error) bool {
	for _, end := range []error{net.ErrClosed, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// endVerbosity is the level at which the end of a connection is logged.
const endVerbosity = 4

// endSink logs errors that are ends of connections as no errors.
type endSink struct{ logr.LogSink }

// Error implements [logr.LogSink].
func (s endSink) Error(err error, message string, values ...any) {
	if err == nil || !ended(err) {
		s.LogSink.Error(err, message, values...)
	} else if s.Enabled(endVerbosity) {
		s.Info(endVerbosity, message, append(values, "error", err)...)
	}
}

// WithValues implements [logr.LogSink].
func (s endSink) WithValues(values ...any) logr.LogSink {
	return endSink{s.LogSink.WithValues(values...)}
}

// WithName implements [logr.LogSink].
func (s endSink) WithName(name string) logr.LogSink { return endSink{s.LogSink.WithName(name)} }
