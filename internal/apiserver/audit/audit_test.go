// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestIdentity(t *testing.T) {
	for _, sent := range []string{"", "abc", strings.Repeat("x", 500)} {
		r := httptest.NewRequest("GET", "/", nil)
		if sent != "" {
			r.Header.Set(Header, sent)
		}
		w := httptest.NewRecorder()
		r = With(w, r)
		id := ID(r.Context())
		if id == "" || id != w.Header().Get(Header) || sent != "" && id != sent {
			t.Errorf("sent %q: %q, answered %q", sent, id, w.Header().Get(Header))
		}
	}
}
