// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import "net/http"

// Issuer is an issuer of ID tokens at which users sign in.
type Issuer struct {
	URL string
	// DiscoveryURL is where its configuration is; empty: below URL.
	DiscoveryURL string
	// ClientID is this cluster's, as a public client.
	ClientID string
	// Client makes requests to the issuer.
	Client *http.Client
}

// Issuers returns the issuers of the current configuration.
type Issuers func() []Issuer

// signIns are the sign-ins at issuers.
type signIns struct{ of Issuers }

func (s *signIns) all() []Issuer {
	if s.of == nil {
		return nil
	}
	return s.of()
}

// names returns the URLs of the issuers.
func (s *signIns) names() []string {
	out := []string{}
	for _, i := range s.all() {
		out = append(out, i.URL)
	}
	return out
}

func (c *Console) beginOIDC(w http.ResponseWriter, _ *http.Request, _ *place) {
	writeError(w, newStatus(http.StatusNotFound, "not served yet"))
}

func (c *Console) endOIDC(w http.ResponseWriter, _ *http.Request, _ *place) {
	writeError(w, newStatus(http.StatusNotFound, "not served yet"))
}
