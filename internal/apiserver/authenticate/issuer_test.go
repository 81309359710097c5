// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// issuer is an OpenID Connect issuer over TLS.
type issuer struct {
	*httptest.Server
	mu   sync.Mutex
	key  *ecdsa.PrivateKey
	id   string
	down atomic.Bool
	sets atomic.Int64 // how often the keys were fetched

	claims atomic.Pointer[string] // the response of /claims to a request with the access token
}

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{key: ecdsaKey(t), id: "1"}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		i.sets.Add(1)
		w.Header().Set("Cache-Control", "max-age=21600, must-revalidate")
		i.mu.Lock()
		defer i.mu.Unlock()
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &i.key.PublicKey, KeyID: i.id, Algorithm: "ES256",
			Use: "sig"}}})
	})
	mux.HandleFunc("/claims", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer access" || i.claims.Load() == nil {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		_, _ = w.Write([]byte(*i.claims.Load()))
	})
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if i.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(i.Close)
	return i
}

// authority returns the issuer's CA as PEM.
func (i *issuer) authority() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
}

// rotate makes the issuer sign with another key from now on.
func (i *issuer) rotate(t testing.TB) {
	t.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.key, i.id = ecdsaKey(t), i.id+"1"
}

// token signs the claims of a valid token with changes; nil removes a claim.
func (i *issuer) token(t testing.TB, change map[string]any) string {
	t.Helper()
	claims := map[string]any{
		"iss": i.URL, "aud": "mortise", "sub": "alice", "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
		"groups": []string{"dev", "ops"},
	}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: i.key}, (&jose.SignerOptions{}).WithHeader("kid", i.id))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := s.Sign(b)
	if err != nil {
		t.Fatal(err)
	}
	out, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// unsigned returns a token with the algorithm none.
func unsigned(payload string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + payload + "."
}
