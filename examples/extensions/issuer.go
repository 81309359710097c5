// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"crypto/rsa"
	"fmt"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// issuer is an OpenID Connect issuer for trials: each client that asks for a token of a user gets it.
type issuer struct {
	url string
	key jose.JSONWebKey
}

func newIssuer(url string) (*issuer, error) {
	// RS256 is what an API server accepts without --oidc-signing-algs.
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	return &issuer{url: url, key: jose.JSONWebKey{Key: key, KeyID: fmt.Sprint(time.Now().Unix()), Algorithm: "RS256", Use: "sig"}}, nil
}

// ServeHTTP serves what an API server reads, and /token?user=NAME.
func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		answer(w, map[string]any{"issuer": i.url, "jwks_uri": i.url + "/keys", "response_types_supported": []string{"id_token"},
			"subject_types_supported": []string{"public"}, "id_token_signing_alg_values_supported": []string{"RS256"}})
	case "/keys":
		answer(w, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{i.key.Public()}})
	case "/token":
		token, err := i.issue(r.FormValue("user"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, token)
	default:
		http.NotFound(w, r)
	}
}

func (i *issuer) issue(user string) (string, error) {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: i.key}, nil)
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: i.url, Subject: user, Audience: jwt.Audience{"mortise"}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Claims(map[string]any{"groups": []string{"readers"}}).Serialize()
}
