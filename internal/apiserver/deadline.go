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
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// deadlineStage gives a request the time that its client gives it, and no more than the server does. Those that last long by their
// nature have no such time. What is answered later, is answered that it is late.
func deadlineStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	rec := recordOf(r.Context())
	info := rec.info
	if info.Verb == "watch" || longRunning(info) {
		next.ServeHTTP(w, r)
		return
	}
	timeout, err := s.timeout(r, info)
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

// timeout returns the timeout of a request; 0: it needs none here. By default requests for resources need none: writes have 34 seconds,
// reads do not wait, and the aggregator sets the timeout of requests that it forwards.
func (s *Server) timeout(r *http.Request, info *requestinfo.Info) (time.Duration, error) {
	most := s.opts.FlowControl.RequestTimeout
	if strings.Contains(r.URL.RawQuery, "timeout=") {
		if said := r.URL.Query().Get("timeout"); said != "" {
			t, err := time.ParseDuration(said)
			if err != nil || t > 0 && t < most {
				return t, err
			}
			return most, nil
		}
	}
	if info.IsResourceRequest && (most >= time.Minute || !s.registry.Kinds().HasGroup(info.APIGroup)) {
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
		panic(fmt.Sprintf("encode status: %v", err)) // a Status is always JSON
	}
	n, _ := w.ResponseWriter.Write(append(b, '\n')) // a client that went away needs no answer
	w.bytes += int64(n)
}
