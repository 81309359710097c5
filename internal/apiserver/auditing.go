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

// auditIdentity comes before authentication, so that rejected requests have an audit ID too. From here on handlers may
// annotate the request's event, if there is one.
func auditIdentity(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	r = audit.With(w, r)
	if s.opts.Audit != nil {
		r = r.WithContext(s.opts.Audit.With(request.WithReceivedTimestamp(r.Context(), time.Now())))
	}
	next.ServeHTTP(w, r)
}

// auditStage writes down what an authenticated client asks, and how it is answered by the stages that follow.
func auditStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if s.opts.Audit == nil {
		next.ServeHTTP(w, r)
		return
	}
	info, _ := request.RequestInfoFrom(r.Context())
	s.opts.Audit.Serve(w, r, audited(r), received(r), lasting(info), next)
}

// refused answers a request that does not come as far as the audit stage, and writes that down.
func (s *Server) refused(w http.ResponseWriter, r *http.Request, message string, answer http.HandlerFunc) {
	if s.opts.Audit == nil {
		answer(w, r)
		return
	}
	s.opts.Audit.Refused(w, r, audited(r), received(r), message, answer)
}

// audited is what an audit policy looks at.
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

// lasting reports whether a request is long-running, so that audit has the stage ResponseStarted.
func lasting(info *requestinfo.Info) bool {
	return info.Verb == "watch" || info.Verb == "proxy" || longRunning(info) || !info.IsResourceRequest &&
		strings.HasPrefix(info.Path, "/debug/pprof/")
}
