// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package grpcconn is one connection to a gRPC server, for many small calls at once. It exists since a call of grpc-go crosses three
// goroutines and a watch of clientv3 four more, which cost more than all else of a write.
//
// The caller's goroutine writes its request, and takes along what other goroutines have to write. One goroutine reads the connection. It
// hands each message to the [Receiver] of its call, and does not keep it. When it has handled all that has arrived, it calls the
// function that Dial was given, and only then returns from [Stream.Wait] those calls that were answered: what was read from the connection
// together can be published together, before any caller looks for it.
//
// The Framer of golang.org/x/net/http2 reads frames, and its hpack header blocks. The package knows one message a request, no compression,
// and no retries: a call on a broken connection fails with [codes.Unavailable], and the caller decides.
package grpcconn
