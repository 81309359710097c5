// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"net/http"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestDistributedClaims checks that groups that a token does not contain are fetched from the source that it names,
// with the token's access token, and only used if they are signed.
func TestDistributedClaims(t *testing.T) {
	i := newIssuer(t)
	w, _ := withIssuers(t, configuration(t, "v1", trusting(i)))
	eventually(t, "the issuer is found", func() bool { return w.knows(t, i.token(t, nil)) })
	elsewhere := func(access string, more map[string]any) string {
		claims := map[string]any{
			"groups": nil, "_claim_names": map[string]string{"groups": "src"},
			"_claim_sources": map[string]any{"src": map[string]string{"endpoint": i.URL + "/claims", "access_token": access}},
		}
		for k, v := range more {
			claims[k] = v
		}
		return i.token(t, claims)
	}
	claims := i.token(t, map[string]any{"groups": []string{"far", "away"}})
	i.claims.Store(&claims)
	// The issuer of the claims is discovered when a token first names it.
	eventually(t, "the issuer of the claims is found", func() bool { return w.knows(t, elsewhere("access", nil)) })
	who, err := w.with(t.Context(), elsewhere("access", nil))
	if err != nil || who.GetName() != "idp:alice" || !slices.Equal(who.GetGroups(), []string{"far", "away", Authenticated}) {
		t.Fatalf("who %v, error %v", who, err)
	}
	if who, err = w.with(t.Context(), elsewhere("access", map[string]any{"groups": []string{"near"}})); err != nil ||
		!slices.Equal(who.GetGroups(), []string{"near", Authenticated}) {
		t.Errorf("groups of the token's own: who %v, error %v", who, err)
	}
	if who, err := w.with(t.Context(), elsewhere("stolen", nil)); err == nil {
		t.Errorf("with another access token: %v", who)
	}
	for name, answer := range map[string]string{
		"no token":         "{}",
		"of another key":   newIssuer(t).token(t, map[string]any{"iss": i.URL, "groups": []string{"root"}}),
		"expired":          i.token(t, map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
		"of another claim": i.token(t, map[string]any{"groups": nil}),
	} {
		i.claims.Store(&answer)
		// Each token is different, so that no result is cached.
		if who, err := w.with(t.Context(), elsewhere("access", map[string]any{"jti": name})); err == nil {
			t.Errorf("%s: taken as %v", name, who)
		}
	}
}

// TestTokensAreNotIgnored checks that with anonymous access enabled a request with an unknown token, or one that could
// not be verified, is rejected rather than anonymous.
func TestTokensAreNotIgnored(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter, r *authenticationv1.TokenReview){
		"unknown": func(w http.ResponseWriter, r *authenticationv1.TokenReview) {
			say(w, r, authenticationv1.TokenReviewStatus{})
		},
		"error": func(w http.ResponseWriter, r *authenticationv1.TokenReview) {
			say(w, r, authenticationv1.TokenReviewStatus{Error: "the directory is closed"})
		},
	} {
		v := newReviewer(t, func(w http.ResponseWriter, _ int, r *authenticationv1.TokenReview) { answer(w, r) })
		w := v.world(t, "v1", time.Minute)
		if who, err := w.with(t.Context(), "token"); err == nil {
			t.Errorf("%s: taken as %v", name, who)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		if who, err := w.Authenticate(r); err != nil || who.GetName() != AnonymousUser {
			t.Errorf("%s: without a token: %v, %v", name, who, err)
		}
	}
}
