// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/impersonate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// impersonateStage lets the request be from whom its headers name, if its user may.
func impersonateStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !impersonate.Wanted(r.Header) {
		next.ServeHTTP(w, r)
		return
	}
	from, _ := request.UserFrom(r.Context())
	info, _ := request.RequestInfoFrom(r.Context())
	begun := time.Now()
	who, constraint, err := s.impersonator.As(r.Context(), r.Header, authorize.Of(info, from))
	request.TrackImpersonationLatency(r.Context(), time.Since(begun))
	if err != nil {
		status.Refuse(w, r, err)
		return
	}
	if who != nil {
		audit.Impersonated(r.Context(), who, constraint)
		r = r.WithContext(request.WithUser(r.Context(), who))
	}
	next.ServeHTTP(w, r)
}
