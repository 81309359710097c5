// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// stage is one step of the request pipeline. It calls next, or responds itself.
type stage struct {
	name string
	step func(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler)
}

// stages returns THE order, outermost first. Dispatch, in paths.go, follows the last stage.
func (s *Server) stages() []stage {
	all := []stage{
		{"request info", requestInfo},
		{"audit identity", auditIdentity},
		{"deadline", deadlineStage},
		{"authenticate", authenticateStage},
		{"audit", auditStage},
		{"impersonate", impersonateStage},
		{"flow control", flowControl},
		{"authorize", authorizeStage},
	}
	if s.opts.Features.StorageVersions != nil {
		all = append(all, stage{"storage versions", storageVersionsStage})
	}
	if s.initializes {
		all = append(all, stage{"initializers", initializersStage})
	}
	return all
}

var uncached = []string{"no-cache, private"}

// pipeline wraps the innermost handler with the stages. Outside of all stages it counts requests, measures their
// latency, and handles panics. Decisions of stages are observed in observers.go, so that no stage carries bookkeeping.
func (s *Server) pipeline(inner http.Handler) http.Handler {
	h, told := inner, dispatched(inner) // told is the same handler, for writes that are traced
	all := s.stages()
	fold := func(next http.Handler, step func(*Server, http.ResponseWriter, *http.Request, http.Handler)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { step(s, w, r, next) })
	}
	for i := len(all) - 1; i >= 0; i-- {
		h, told = fold(h, all[i].step), explained(all[i].name, fold(told, all[i].step))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		info := requestinfo.Parse(r)
		if requestinfo.Writes(info) {
			deepen(0)
		}
		rec := &requestRecord{server: s, request: r, info: info, begun: begun}
		rec.answer.ResponseWriter, rec.answer.record = w, rec
		_, rec.inProcess = w.(*unary)
		w.Header()["Cache-Control"] = uncached // unless the handler sets it
		defer func() { lasting.Recover(w, recover(), rec.finish) }()
		ctx := request.WithRequestInfo(r.Context(), info)
		if s.opts.Features.CBOR {
			ctx = negotiate.WithCBOR(ctx, true)
		}
		rec.Context = ctx
		if s.explain.Traces(info) {
			rec.trace = s.explain.Begin(info, begun)
			told.ServeHTTP(&rec.answer, r.WithContext(explain.With(rec, rec.trace)))
			return
		}
		h.ServeHTTP(&rec.answer, r.WithContext(rec))
	})
}

// finish is what is done when the request has been answered. It gets the value of a panic; nil: there was none.
func (c *requestRecord) finish(panic any) {
	s := c.server
	if panic != nil {
		panicked(s.opts.Log, &c.answer, c.request, panic)
	}
	if c.left != nil {
		c.left()
	}
	took := time.Since(c.begun)
	observe(s.metrics, c, took)
	finished(c, took)
}

// panicked responds to a request whose handler panicked; it passes on http.ErrAbortHandler, which ends a response half-way.
func panicked(log *slog.Logger, w *recorder, r *http.Request, p any) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	log.ErrorContext(r.Context(), "Panic while serving a request", "method", r.Method, "path", r.URL.Path, "panic", p,
		"stack", string(debug.Stack()))
	if w.code == 0 {
		status.Write(w, r, apierrors.NewInternalError(errors.New("the server had an error and could not complete the request")))
		return
	}
	panic(http.ErrAbortHandler)
}

// requestInfo checks the request info, which the pipeline has parsed already for its metrics.
func requestInfo(_ *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.URL.Path == "" || r.URL.Path[0] != '/' {
		status.Write(w, r, apierrors.NewBadRequest("the path must begin with a slash"))
		return
	}
	if err := requestinfo.Check(recordOf(r.Context()).info, r.URL); err != nil {
		w.Header().Del("Cache-Control")
		internalError(w, r, fmt.Errorf("failed to create RequestInfo: %w", err)) // upstream's words
		return
	}
	next.ServeHTTP(w, r)
}

// internalError writes a plain-text error for a stage that failed.
func internalError(w http.ResponseWriter, r *http.Request, err error) {
	text := fmt.Sprintf("Internal Server Error: %q: %v", r.RequestURI, err) // upstream's words
	http.Error(w, authorize.EscapeMarkup(text), http.StatusInternalServerError)
}

func authorizeStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	ctx := r.Context()
	who, _ := request.UserFrom(ctx)
	a := authorize.Of(recordOf(ctx).info, who)
	d, reason, err := s.access.authorized(ctx, &a)
	switch {
	case d == authorize.Allow: // despite other errors
		next.ServeHTTP(w, r)
	case err != nil:
		internalError(w, r, err)
	default:
		status.Refuse(w, r, authorize.Forbidden(&a, reason))
	}
}
