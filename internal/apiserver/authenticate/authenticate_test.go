// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/resource"
)

func newTokens(t testing.TB, now *time.Time) *Tokens {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &Tokens{Key: key, Now: func() time.Time { return *now }}
}

func TestTokens(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	tokens := newTokens(t, &now)
	issue := func(c resource.TokenClaims) string {
		t.Helper()
		s, expires, err := tokens.Issue(c)
		if err != nil || !expires.Time.Equal(now.Add(time.Hour)) {
			t.Fatalf("expires %v, error %v", expires, err)
		}
		return s
	}
	own := issue(resource.TokenClaims{Namespace: "ns", ServiceAccount: "sa", ServiceAccountUID: "u", Seconds: 3600, PodName: "p", PodUID: "pu"})
	who, _, err := tokens.Verify(t.Context(), own, nil)
	if err != nil {
		t.Fatal(err)
	}
	if who.GetName() != "system:serviceaccount:ns:sa" || who.GetUID() != "u" || who.GetExtra()["authentication.kubernetes.io/pod-name"][0] != "p" {
		t.Errorf("who: %+v", who)
	}
	other := issue(resource.TokenClaims{Namespace: "ns", ServiceAccount: "sa", Seconds: 3600, Audiences: []string{"vault"}})
	if _, _, err := tokens.Verify(t.Context(), other, nil); err == nil {
		t.Error("a token for another audience was taken")
	}
	if _, shared, err := tokens.Verify(t.Context(), other, []string{"vault", "x"}); err != nil || len(shared) != 1 {
		t.Errorf("shared %v, error %v", shared, err)
	}
	stranger := newTokens(t, &now)
	if _, _, err := stranger.Verify(t.Context(), own, nil); err == nil {
		t.Error("another server's token was taken")
	}
	now = now.Add(time.Hour)
	if _, _, err := tokens.Verify(t.Context(), own, nil); err == nil {
		t.Error("an expired token was taken")
	}
}

func FuzzBearer(f *testing.F) {
	f.Add("Bearer a.b.c", "base64url.bearer.authorization.k8s.io.YQ, v4.channel.k8s.io")
	f.Add("Basic eDp5", "")
	now := time.Now()
	tokens := newTokens(f, &now)
	f.Fuzz(func(t *testing.T, authorization, protocols string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header["Authorization"], r.Header["Sec-Websocket-Protocol"] = []string{authorization}, []string{protocols}
		who, err := tokens.Authenticate(r)
		if who != nil {
			t.Fatalf("%q gave %v", authorization, who)
		}
		if err == nil && strings.HasPrefix(strings.ToLower(authorization), "bearer x") {
			t.Fatalf("%q was taken for no credential", authorization)
		}
	})
}
