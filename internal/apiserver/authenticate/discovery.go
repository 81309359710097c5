// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// Discovery returns the documents for clients that verify service account tokens themselves: the configuration, which
// names the URL of the keys, and the keys, both as JSON. external is the address of this server, HOST:PORT. ok is false
// if the issuer is not a URL that can serve documents.
func (a *Accounts) Discovery(external string) (config, keys []byte, maxAge int, ok bool, err error) {
	iss, err := url.Parse(a.Issuers[0])
	if err != nil || iss.Scheme != "https" || iss.RawQuery != "" || iss.Fragment != "" {
		return nil, nil, 0, false, nil
	}
	set, algs := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}, []string{}
	for _, k := range a.Keys.Find(context.Background(), "") {
		if k.Unpublished {
			continue
		}
		alg, err := algorithm(k.Public)
		if err != nil {
			return nil, nil, 0, true, err
		}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.Public, KeyID: k.ID, Algorithm: string(alg), Use: "sig"})
		algs = append(algs, string(alg))
	}
	slices.Sort(algs)
	at := a.JWKSURI
	if at == "" {
		at = (&url.URL{Scheme: "https", Host: external, Path: "/openid/v1/jwks"}).String()
	}
	config, err = json.Marshal(struct {
		Issuer     string   `json:"issuer"`
		Keys       string   `json:"jwks_uri"`
		Responses  []string `json:"response_types_supported"`
		Subjects   []string `json:"subject_types_supported"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}{a.Issuers[0], at, []string{"id_token"}, []string{"public"}, slices.Compact(algs)})
	if err == nil {
		keys, err = json.Marshal(set)
	}
	if err != nil {
		return nil, nil, 0, true, fmt.Errorf("encode discovery documents: %w", err)
	}
	return config, keys, a.Keys.MaxAge(), true, nil
}
