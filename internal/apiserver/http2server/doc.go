// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package http2server serves HTTP/2 (RFC 9113) to many streams of few connections, as clients of an API server are: they share one
// connection for all their requests and watches. Decision 25 says why there is one beside net/http's.
//
// Three things make it cheap. A request crosses one goroutine, not three: the goroutine that reads a connection hands a request to a
// worker, and the worker writes its answer itself. What several streams write at about the same time leaves as one TLS record and one
// system call: the first that writes lets the goroutines that are ready to run go ahead, and takes along what they have written. And a
// request whose body has arrived with its header begins with its body there.
//
// A response may go on after its handler has returned (package lasting), as that of a watch: while it waits, its stream has no goroutine.
//
// The Framer of golang.org/x/net/http2 reads frames, and its hpack header blocks. Limits of a connection, each of which a hostile client
// meets, stand in limits.go.
package http2server
