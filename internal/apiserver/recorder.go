// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bufio"
	"net"
	"net/http"
)

// turnBytes is the number of response bytes after which the request yields its turn.
const turnBytes = 16 << 10

// recorder records the code and size of a response for metrics.
type recorder struct {
	http.ResponseWriter
	record *requestRecord

	late  bool // the timeout error was sent
	code  int
	bytes int64
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

// Write writes a part of the body.
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
	if turn := w.record.turn; turn != nil && len(p) >= turnBytes {
		turn.Writing()
		defer turn.Yield(w.record.request.Context())
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Flush sends buffered data.
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
