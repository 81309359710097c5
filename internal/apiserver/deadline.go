// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// deadlineStage sets the deadline of a request: the one that its client requests, or the server's if that is earlier.
// Long-running requests have no deadline. A request whose handler exceeds the deadline gets a timeout error.
func deadlineStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := recordOf(r.Context())
	info := rec.info
	if info.Verb == "watch" || longRunning(info) {
		next.ServeHTTP(w, r)
		return
	}
	timeout, err := timeoutOf(r, info, s.opts.FlowControl.RequestTimeout, s.registry.Kinds())
	if err != nil {
		e := apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %v", err))
		s.refused(w, r, e.Error(), func(w http.ResponseWriter, r *http.Request) { status.Write(w, r, e) })
		return
	}
	if timeout == 0 {
		next.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	rec.allotted = ctx
	if ctx.Err() == nil {
		next.ServeHTTP(w, r.WithContext(ctx))
		return
	}
	rec.answer.tooLate()
}

// timeoutOf returns the timeout of a request; 0: it needs none here. By default requests for resources need none: writes have 34 seconds,
// reads do not wait, and the aggregator sets the timeout of requests that it forwards.
func timeoutOf(r *http.Request, info *requestinfo.Info, most time.Duration, kinds *registry.Kinds) (time.Duration, error) {
	if strings.Contains(r.URL.RawQuery, "timeout=") {
		if said := r.URL.Query().Get("timeout"); said != "" {
			t, err := time.ParseDuration(said)
			if err != nil || t > 0 && t < most {
				return t, err
			}
			return most, nil
		}
	}
	if info.IsResourceRequest && (most >= time.Minute || !kinds.HasGroup(info.APIGroup)) {
		return 0, nil
	}
	return most, nil
}

// expired reports whether the time that the request had is over.
func (w *recorder) expired() bool {
	allotted := w.record.allotted
	return allotted != nil && errors.Is(allotted.Err(), context.DeadlineExceeded)
}

// tooLate responds that the request has timed out. Whatever its handler writes from now on is dropped.
func (w *recorder) tooLate() {
	w.late, w.code = true, http.StatusGatewayTimeout
	h := w.Header()
	for name := range h {
		switch name {
		case audit.Header, "Cache-Control", "Connection":
		default:
			delete(h, name)
		}
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	w.ResponseWriter.WriteHeader(http.StatusGatewayTimeout)
	late := apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0).ErrStatus // upstream's words
	b, err := json.Marshal(&late)
	if err != nil {
		panic(fmt.Sprintf("encode status: %v", err)) // a Status can always be encoded
	}
	n, _ := w.ResponseWriter.Write(append(b, '\n')) // the client may have left
	w.bytes += int64(n)
}
