// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// authority is a CA of client certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{key: ecdsaKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2040, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

func (a *authority) sign(t testing.TB, subject pkix.Name, until time.Time) *x509.Certificate {
	t.Helper()
	key := ecdsaKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject, NotBefore: a.cert.NotBefore, NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a.cert, &key.PublicKey, a.key)
	var c *x509.Certificate
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (a *authority) bundle(t testing.TB) *Bundle {
	t.Helper()
	b, err := NewBundle(a.pem)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOrder checks which of several credentials in a request decides, and the effect of invalid ones.
func TestOrder(t *testing.T) {
	ours, theirs, front, foreign := newAuthority(t, "ours"), newAuthority(t, "theirs"), newAuthority(t, "front"), newAuthority(t, "foreign")
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	static := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		if token == "broken" {
			return nil, false, errors.New("static tokens are broken")
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "static"}}, token == "static" || token == "broken but known", nil
	})
	w := newWorld(t, Settings{
		ClientCAs: theirs.bundle(t), StaticTokens: static,
		FrontProxy: &FrontProxy{Authorities: front.bundle(t), Names: []string{"proxy"}, Headers: StandardHeaders()},
	}, &Certificate{Roots: roots, Now: func() time.Time { return time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC) }})
	far := time.Date(2039, 1, 1, 0, 0, 0, 0, time.UTC)
	alice := pkix.Name{CommonName: "alice", Organization: []string{"dev"}}
	remote := http.Header{"X-Remote-User": {"carol"}, "X-Remote-Group": {"a", "b"}, "X-Remote-Uid": {"7"},
		"X-Remote-Extra-Example.com%2fscopes": {"x"}}
	for _, c := range []struct {
		name   string
		cert   *x509.Certificate
		header http.Header
		who    string
	}{
		{name: "nothing", who: AnonymousUser},
		{name: "our certificate", cert: ours.sign(t, alice, far), who: "alice"},
		{name: "certificate of the file's authority", cert: theirs.sign(t, alice, far), who: "alice"},
		{name: "foreign certificate", cert: foreign.sign(t, alice, far)},
		{name: "expired certificate", cert: ours.sign(t, alice, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))},
		{name: "certificate without a name", cert: ours.sign(t, pkix.Name{Organization: []string{"x"}}, far), who: AnonymousUser},
		{name: "certificate before a token", cert: ours.sign(t, alice, far), header: http.Header{"Authorization": {"Bearer static"}},
			who: "alice"},
		{name: "certificate and a wrong token", cert: ours.sign(t, alice, far), header: http.Header{"Authorization": {"Bearer x"}}},
		{name: "foreign certificate, good token", cert: foreign.sign(t, alice, far), header: http.Header{"Authorization": {"Bearer static"}},
			who: "static"},
		{name: "token", header: http.Header{"Authorization": {"bearer  static"}}, who: AnonymousUser},
		{name: "token, any case", header: http.Header{"Authorization": {"BEARER static"}}, who: "static"},
		{name: "wrong token", header: http.Header{"Authorization": {"Bearer x"}}},
		{name: "error", header: http.Header{"Authorization": {"Bearer broken"}}},
		{name: "another scheme", header: http.Header{"Authorization": {"Basic eDp5"}}, who: AnonymousUser},
		{name: "proxy", cert: front.sign(t, pkix.Name{CommonName: "proxy"}, far), header: remote, who: "carol"},
		{name: "proxy before a token", cert: front.sign(t, pkix.Name{CommonName: "proxy"}, far),
			header: http.Header{"X-Remote-User": {"carol"}, "Authorization": {"Bearer x"}}, who: "carol"},
		{name: "another of the proxies' authority", cert: front.sign(t, pkix.Name{CommonName: "other"}, far), header: remote},
		{name: "headers of a user", cert: ours.sign(t, alice, far), header: remote, who: "alice"},
		{name: "headers of nobody", header: remote, who: AnonymousUser},
		{name: "proxy without headers", cert: front.sign(t, pkix.Name{CommonName: "proxy"}, far)},
		{name: "WebSocket", header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
			"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.c3RhdGlj, v4.channel.k8s.io"}}, who: "static"},
		{name: "WebSocket without another protocol", header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
			"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.c3RhdGlj"}}},
		{name: "protocol without WebSocket", header: http.Header{"Sec-Websocket-Protocol": {"base64url.bearer.authorization.k8s.io.c3RhdGlj, x"}},
			who: AnonymousUser},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header = c.header.Clone()
			if r.Header == nil {
				r.Header = http.Header{}
			}
			if c.cert != nil {
				r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c.cert}}
			}
			r = r.WithContext(WithConnection(r.Context()))
			for range 2 { // the second time it is cached
				r := r.Clone(r.Context())
				who, err := w.Authenticate(r)
				if c.who == "" {
					if err == nil {
						t.Fatalf("taken as %v", who)
					}
					continue
				}
				if err != nil || who.GetName() != c.who {
					t.Fatalf("who %v, error %v", who, err)
				}
				if r.Header.Get("Authorization") != "" || r.Header.Get("X-Remote-User") != "" ||
					r.Header.Get("X-Remote-Extra-Example.com%2fscopes") != "" {
					t.Errorf("a credential was left: %v", r.Header)
				}
				if has := slices.Contains(who.GetGroups(), Authenticated); has != (c.who != AnonymousUser) {
					t.Errorf("groups: %v", who.GetGroups())
				}
				switch c.who {
				case "alice":
					if id := who.GetExtra()["authentication.kubernetes.io/credential-id"]; len(id) != 1 || !strings.HasPrefix(id[0], "X509SHA256=") ||
						who.GetGroups()[0] != "dev" {
						t.Errorf("who: %+v", who)
					}
				case "carol":
					if c.name == "proxy" && (who.GetUID() != "7" || who.GetGroups()[1] != "b" || who.GetExtra()["example.com/scopes"][0] != "x") {
						t.Errorf("who: %+v", who)
					}
				}
			}
		})
	}
}

func TestAnonymous(t *testing.T) {
	at := func(w *world, path string) error {
		_, err := w.Authenticate(httptest.NewRequest(http.MethodGet, path, nil))
		return err
	}
	w := newWorld(t, Settings{Anonymous: &apiserverconfig.AnonymousAuthConfig{Enabled: true,
		Conditions: []apiserverconfig.AnonymousAuthCondition{{Path: "/livez"}}}}, nil)
	if err := at(w, "/livez"); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/livez/ping", "/api", "/"} {
		if at(w, path) == nil {
			t.Errorf("%s: anonymous", path)
		}
	}
	if at(newWorld(t, Settings{Anonymous: &apiserverconfig.AnonymousAuthConfig{}}, nil), "/livez") == nil {
		t.Error("anonymous, though nobody may be")
	}
}
