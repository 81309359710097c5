// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/impersonate"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
)

// impersonateStage replaces the request's user with the one in its headers, if the user may impersonate that one.
func impersonateStage(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	if !impersonate.Wanted(r.Header) {
		next.ServeHTTP(w, r)
		return
	}
	from, _ := request.UserFrom(r.Context())
	who, err := s.access.impersonated(r, from)
	if err != nil {
		status.Refuse(w, r, err)
		return
	}
	if who != nil {
		r = r.WithContext(request.WithUser(r.Context(), who))
	}
	next.ServeHTTP(w, r)
}
