// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// maxHeld is the maximum number of response bytes that are held back.
const maxHeld = 4 << 20

// tap observes a response: its code, and its body if the event needs it. If a write may only be acknowledged after its
// event was stored, it holds the response back until then.
type tap struct {
	http.ResponseWriter
	ctx    context.Context
	ac     *audit.AuditContext
	long   bool
	copies bool
	holds  bool
	bare   bool // omit managed fields

	code int
	body []byte // a copy, or the held-back response
}

// Unwrap lets http.ResponseController reach the connection.
func (t *tap) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Answer records that the response is the status s, for handlers that write one themselves.
func (t *tap) Answer(s *metav1.Status) { Status(t.ctx, s) }

func (t *tap) see(code int) {
	if t.code != 0 {
		return
	}
	t.code = code
	t.ac.SetEventResponseStatusCode(int32(code))
	if t.long {
		t.ac.ProcessEventStage(t.ctx, auditinternal.StageResponseStarted)
	}
}

// WriteHeader sends the code.
func (t *tap) WriteHeader(code int) {
	t.see(code)
	if !t.holds {
		t.ResponseWriter.WriteHeader(code)
	}
}

// Write sends a part of the body.
func (t *tap) Write(p []byte) (int, error) {
	t.see(http.StatusOK)
	if t.copies || t.holds {
		t.body = append(t.body, p...)
	}
	if !t.holds {
		begun := time.Now()
		n, err := t.ResponseWriter.Write(p)
		request.TrackResponseWriteLatency(t.ctx, time.Since(begun))
		return n, err
	}
	if len(t.body) > maxHeld {
		t.release()
	}
	return len(p), nil
}

// release sends the held-back response. Later writes are sent immediately.
func (t *tap) release() {
	if !t.holds {
		return
	}
	t.holds = false
	if t.code != 0 {
		t.ResponseWriter.WriteHeader(t.code)
	}
	_, _ = t.ResponseWriter.Write(t.body) // the client may have left
}

// Flush sends buffered data.
func (t *tap) Flush() {
	if !t.holds {
		_ = http.NewResponseController(t.ResponseWriter).Flush()
	}
}

// Hijack takes the connection over, for protocols that upgrade it.
func (t *tap) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	t.see(http.StatusSwitchingProtocols)
	return http.NewResponseController(t.ResponseWriter).Hijack()
}
