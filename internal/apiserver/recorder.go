// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// turnBytes is how much of an answer is written before others have their turn.
const turnBytes = 16 << 10

// recorder remembers of an answer what is counted: its code, its size, and whether a kind's verb gave it.
type recorder struct {
	http.ResponseWriter
	server  *Server
	info    *requestinfo.Info
	request *http.Request

	begun      time.Time
	allotted   context.Context   // ends when the request's time is over; nil: it has no bound
	late       bool              // it was answered that it is
	trace      *explain.Trace    // of a write; nil: it is not kept
	turn       *flowcontrol.Turn // that the request has of the processors; nil: it needs none
	code       int
	bytes      int64
	routed     bool
	deprecated bool
	left       func() // counts a request that lasts out again; nil for others
}

// Routed is called when a kind and a verb have been found for the request.
func (w *recorder) Routed(deprecated bool) {
	w.routed, w.deprecated = true, deprecated
	if w.info.Verb == "watch" || longRunning(w.info) {
		w.left = w.server.metrics.Long(resourceLabel(w.info, w.request))
	}
}

// within says whether a part of this process is answered.
func (w *recorder) within() bool {
	_, ok := w.ResponseWriter.(*unary)
	return ok
}

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader sends the code.
func (w *recorder) WriteHeader(code int) {
	if w.code == 0 {
		if w.expired() {
			w.tooLate()
			return
		}
		w.code = code
	}
	if !w.late {
		w.ResponseWriter.WriteHeader(code)
	}
}

// Write sends a part of the body.
func (w *recorder) Write(p []byte) (int, error) {
	if w.code == 0 {
		if w.expired() {
			w.tooLate()
		} else {
			w.code = http.StatusOK
		}
	}
	if w.late {
		return len(p), nil
	}
	if w.turn != nil && len(p) >= turnBytes {
		w.turn.Writing()
		defer w.turn.Yield(w.request.Context())
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Flush sends what is buffered.
func (w *recorder) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// Hijack takes the connection over, for protocols that upgrade it.
func (w *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil && w.code == 0 {
		w.code = http.StatusSwitchingProtocols
	}
	return c, rw, err
}

func (w *recorder) status() int {
	if w.code == 0 {
		return http.StatusOK
	}
	return w.code
}
