// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servingkey

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// TestPublished: a node publishes the key of a certificate that the cluster has not signed, and nothing else.
func TestPublished(t *testing.T) {
	var certificates [2]tls.Certificate
	var ours *serving.Material
	for i := range certificates {
		m, err := serving.LoadOrCreate(t.TempDir(), []string{"localhost"}, serving.Options{})
		if err != nil {
			t.Fatal(err)
		}
		pair, err := m.Node("n", []string{"n"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if certificates[i] = pair.TLS(); i == 0 {
			ours = m
		}
	}
	get := func(c *tls.Certificate, err error) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, err }
	}
	stranger := Of(certificates[1].Leaf)
	if !strings.HasPrefix(stranger, "sha256/") || len(stranger) != 51 || stranger == Of(certificates[0].Leaf) {
		t.Errorf("the digest is %q", stranger)
	}
	for name, c := range map[string]struct {
		config *tls.Config
		want   string
	}{
		"nothing is served":              {nil, ""},
		"no certificate":                 {&tls.Config{ClientCAs: ours.CA.Pool()}, ""},
		"not approved yet":               {&tls.Config{ClientCAs: ours.CA.Pool(), GetCertificate: get(nil, errors.New("none"))}, ""},
		"the cluster's":                  {&tls.Config{ClientCAs: ours.CA.Pool(), GetCertificate: get(&certificates[0], nil)}, ""},
		"another's":                      {&tls.Config{ClientCAs: ours.CA.Pool(), GetCertificate: get(&certificates[1], nil)}, stranger},
		"of a file":                      {&tls.Config{ClientCAs: ours.CA.Pool(), Certificates: certificates[1:]}, stranger},
		"of the cluster's, from a file":  {&tls.Config{ClientCAs: ours.CA.Pool(), Certificates: certificates[:1]}, ""},
		"no authority of clients to ask": {&tls.Config{Certificates: certificates[1:]}, stranger},
	} {
		if got := Published(c.config); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
