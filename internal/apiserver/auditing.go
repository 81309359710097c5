// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// auditIdentity sets the request's audit ID. It runs before authentication, so that rejected requests have one too.
// Later handlers may annotate the request's audit event, if there is one.
func auditIdentity(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	r = audit.With(w, r)
	if s.opts.Audit != nil {
		r = r.WithContext(s.opts.Audit.With(request.WithReceivedTimestamp(r.Context(), time.Now())))
	}
	next.ServeHTTP(w, r)
}

// auditStage records the requests of authenticated clients, and the responses of the later stages.
func auditStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if s.opts.Audit == nil {
		next.ServeHTTP(w, r)
		return
	}
	info, _ := request.RequestInfoFrom(r.Context())
	s.opts.Audit.Serve(w, r, audited(r), received(r), hasResponseStarted(info), next)
}

// refused rejects a request that does not reach the audit stage, and records the rejection.
func (s *Server) refused(w http.ResponseWriter, r *http.Request, message string, answer http.HandlerFunc) {
	if s.opts.Audit == nil {
		answer(w, r)
		return
	}
	s.opts.Audit.Refused(w, r, audited(r), received(r), message, answer)
}

// audited returns the attributes for the audit policy.
func audited(r *http.Request) authorizer.Attributes {
	info, _ := request.RequestInfoFrom(r.Context())
	who, _ := request.UserFrom(r.Context())
	return &authorizer.AttributesRecord{
		User: who, Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion, Resource: info.Resource,
		Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.IsResourceRequest, Path: info.Path,
	}
}

func received(r *http.Request) time.Time {
	t, _ := request.ReceivedTimestampFrom(r.Context())
	return t
}

// hasResponseStarted reports whether a request is long-running, so that audit has the stage ResponseStarted.
func hasResponseStarted(info *requestinfo.Info) bool {
	return info.Verb == "watch" || info.Verb == "proxy" || longRunning(info) || !info.IsResourceRequest &&
		strings.HasPrefix(info.Path, "/debug/pprof/")
}
