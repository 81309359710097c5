// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol/fair"
	"github.com/mortise-dev/mortise/internal/apiserver/impersonate"
)

// Decisions are observed here: these functions report the results and durations of stages to metrics, the audit event
// and the trace of a request. The stages themselves only decide.

// accessControl authenticates requests, lets them impersonate users, and authorizes them. It is safe for concurrent use.
type accessControl struct {
	authn        *authenticate.Authenticators
	impersonator *impersonate.Impersonator
	authz        authorize.Chain
	attempts     *authorize.Attempts
}

// authenticated returns the user of a request.
func (a *accessControl) authenticated(r *http.Request, asks *http.Request) (user.Info, error) {
	begun := time.Now()
	who, err := a.authn.Authenticate(asks)
	request.TrackAuthenticationLatency(r.Context(), time.Since(begun))
	return who, err
}

// impersonated returns the user that the request impersonates; nil: none.
func (a *accessControl) impersonated(r *http.Request, from user.Info) (user.Info, error) {
	ctx := r.Context()
	begun := time.Now()
	who, constraint, err := a.impersonator.As(ctx, r.Header, authorize.Of(recordOf(ctx).info, from))
	request.TrackImpersonationLatency(ctx, time.Since(begun))
	if err == nil && who != nil {
		audit.Impersonated(ctx, who, constraint)
	}
	return who, err
}

// authorized decides whether the request is allowed.
func (a *accessControl) authorized(ctx context.Context, of *authorize.Attributes) (d authorize.Decision, reason string, err error) {
	begun := time.Now()
	d, reason, err = a.authz.Authorize(ctx, of)
	took := time.Since(begun)
	a.attempts.Observe(d, err, took)
	request.TrackAuthorizationLatency(ctx, took)
	allowed := d == authorize.Allow // despite other errors
	if !allowed && err != nil {
		audit.Undecided(ctx)
		return d, reason, err
	}
	audit.Decided(ctx, allowed, reason)
	if t := recordOf(ctx).trace; t != nil {
		if administrator(of.User) {
			t.DecidedBy(authorize.Masters)
		}
		t.Decided(allowed, reason)
	}
	return d, reason, err
}

// queued waits for the seats of a request at its priority level; nil: it is rejected.
func (s *Server) queued(
	ctx context.Context, schema *flowcontrol.Schema, work fair.Work, who user.Info, release func(),
) *flowcontrol.Ticket {
	rec := recordOf(ctx)
	begun := time.Now()
	ticket, ok := s.flow.Enter(ctx, rec.begun, schema, work, rec.info, who, release)
	request.TrackAPFQueueWaitLatency(ctx, time.Since(begun))
	if !ok {
		return nil
	}
	return ticket
}
