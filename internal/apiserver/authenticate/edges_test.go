// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/resource"
)

// TestCertificateBesideAToken checks that a token beside a certificate is verified, and that its error rejects the
// request.
func TestCertificateBesideAToken(t *testing.T) {
	ours, others := newAuthority(t, "ours"), newAuthority(t, "others")
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	between := &authority{key: ecdsaKey(t)}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "between"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: ours.cert.NotBefore,
		NotAfter:  ours.cert.NotAfter, KeyUsage: x509.KeyUsageCertSign,
	}, ours.cert, &between.key.PublicKey, ours.key)
	if err == nil {
		between.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &Certificate{Roots: roots, Now: func() time.Time { return now },
		Tokens: func(*http.Request) error { return errors.New("nobody's token") }}
	alice := pkix.Name{CommonName: "alice"}
	of := func(a *authority, name pkix.Name) *x509.Certificate { return a.sign(t, name, now.Add(time.Hour)) }
	for what, q := range map[string]struct {
		certs []*x509.Certificate
		token bool
		error string
	}{
		"no token":                       {[]*x509.Certificate{of(ours, alice)}, false, ""},
		"a token":                        {[]*x509.Certificate{of(ours, alice)}, true, "nobody's token"},
		"an authority between":           {[]*x509.Certificate{of(between, alice), between.cert}, false, ""},
		"an authority that is not shown": {[]*x509.Certificate{of(between, alice)}, false, "verify client certificate"},
		"another authority":              {[]*x509.Certificate{of(others, alice)}, false, "verify client certificate"},
		"what API servers are to the nodes": {[]*x509.Certificate{of(ours, pkix.Name{CommonName: KubeletClientName})}, false,
			"is for nodes alone"},
	} {
		for _, remembered := range []bool{true, false} {
			r := shows(t, q.certs...)
			if !remembered {
				r = r.WithContext(t.Context())
			}
			if q.token {
				r.Header.Set("Authorization", "Bearer x")
			}
			for range 2 {
				resp, ok, err := c.AuthenticateRequest(r)
				refuses(t, what, err, q.error)
				if ok != (q.error == "") || ok && resp.User.GetName() != "alice" {
					t.Errorf("%s: %t %v", what, ok, resp)
				}
			}
		}
	}
}

// TestFrontProxyIsChecked checks that only headers of the proxies are trusted, and that all are removed.
func TestFrontProxyIsChecked(t *testing.T) {
	front, others := newAuthority(t, "front"), newAuthority(t, "others")
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	f := &FrontProxy{Authorities: front.bundle(t), Names: []string{"proxy"}, Headers: Headers{Username: []string{"X-User"}}}
	a := f.authenticator(func() time.Time { return now })
	for what, c := range map[string]struct {
		cert  *x509.Certificate
		error string
	}{
		"the proxy": {front.sign(t, pkix.Name{CommonName: "proxy"}, now.Add(time.Hour)), ""},
		"another": {front.sign(t, pkix.Name{CommonName: "other"}, now.Add(time.Hour)),
			"x509: subject with cn=other is not in the allowed list"},
		"of others":           {others.sign(t, pkix.Name{CommonName: "proxy"}, now.Add(time.Hour)), "verify client certificate"},
		"one that is expired": {front.sign(t, pkix.Name{CommonName: "proxy"}, now.Add(-time.Hour)), "verify client certificate"},
	} {
		r := shows(t, c.cert)
		r.Header.Set("X-User", "carol")
		resp, ok, err := a.AuthenticateRequest(r)
		refuses(t, what, err, c.error)
		if ok != (c.error == "") || ok && resp.User.GetName() != "carol" {
			t.Errorf("%s: %t %v", what, ok, resp)
		}
	}
	w := newWorld(t, Settings{FrontProxy: f}, nil)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-User", "carol")
	if who, err := w.Authenticate(r); err != nil || who.GetName() != AnonymousUser || r.Header.Get("X-User") != "" {
		t.Errorf("without a certificate: %v, %v, %v", who, err, r.Header)
	}
}

// TestNobody checks that an anonymous user is in no other group, and that an unknown token identifies no user.
func TestNobody(t *testing.T) {
	w := newWorld(t, Settings{Anonymous: &apiserverconfig.AnonymousAuthConfig{}}, nil)
	w.requests = []Authenticator{authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: AnonymousUser}}, true, nil
	})}
	if who, err := w.with(t.Context(), "x"); err != nil || len(who.GetGroups()) != 0 {
		t.Errorf("who %v, %v", who, err)
	}
	w.requests = nil
	if who, audiences, err := w.Verify(t.Context(), "x", nil); who != nil || audiences != nil || err != nil {
		t.Errorf("who %v for %v, %v", who, audiences, err)
	}
	if _, err := w.with(t.Context(), "x"); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("error %v", err)
	}
	for range 2 {
		w.metrics.observe("jane", "success", time.Second)
	}
	w.metrics.observe("ann@example.com", "success", time.Second)
	if n := counted(w.metrics.users.WithLabelValues("other")); n != 3 { // anonymous, and jane twice
		t.Errorf("%v others", n)
	}
	_, err := New(t.Context(), Settings{Webhook: &WebhookSettings{Config: &rest.Config{Host: "https://x"}, Version: "v9"}}, nil,
		Deps{Ledger: extension.NewLedger(clock.RealClock{})})
	refuses(t, "a webhook of another version", err, "make token webhook")
}

// TestSecretThatIsNone covers objects of another type in place of a secret.
func TestSecretThatIsNone(t *testing.T) {
	w := newWorld(t, Settings{}, nil)
	w.shelf.put("secrets", "ns", "s", "su", &corev1.Pod{})
	token, err := w.Accounts().Legacy(t.Context(), "ns", "s", "sa", "u")
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.with(t.Context(), token)
	refuses(t, "a pod", err, "Token has been invalidated")
	if _, err := w.accounts.secret(t.Context(), "ns", "s"); err == nil {
		t.Error("a pod is a secret")
	}
}

// TestNoWarning checks that a lifetime up to the maximum is not shortened.
func TestNoWarning(t *testing.T) {
	w, warned := newWorld(t, Settings{Accounts: AccountSettings{MaxExpiration: time.Hour}}, nil), &warnings{}
	issued, err := w.Accounts().Issue(warning.WithWarningRecorder(t.Context(), warned),
		resource.TokenClaims{Namespace: "ns", ServiceAccount: "sa", Seconds: 3600})
	if err != nil || issued.Seconds != 3600 || len(*warned) != 0 {
		t.Errorf("%d s, warned %q, %v", issued.Seconds, *warned, err)
	}
}

// TestOldKeys checks that a token verified with keys that were replaced meanwhile is accepted once, and not cached.
func TestOldKeys(t *testing.T) {
	var s signatures
	s.init()
	parsed := 0
	for n, c := range []struct {
		token      string
		generation uint64
		parsed     int
	}{{"a", 2, 1}, {"b", 1, 2}, {"b", 1, 3}, {"b", 2, 4}, {"b", 2, 4}, {"a", 2, 4}, {"a", 3, 5}} {
		got, who, err := s.get(c.token, c.generation, func() (*claims, error) { parsed++; return &claims{}, nil })
		if got == nil || who == nil || err != nil || parsed != c.parsed {
			t.Errorf("%d: %v, %v, %v, parsed %d times", n, got, who, err, parsed)
		}
	}
	if got, _, err := s.get("c", 3, func() (*claims, error) { return nil, nil }); got != nil || err != nil {
		t.Errorf("nobody's: %v, %v", got, err)
	}
}

// TestFilesThatAreWrong checks that an unreadable file or an unsuitable key is rejected, and that files are followed.
func TestFilesThatAreWrong(t *testing.T) {
	one := newAuthority(t, "one")
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, one.pem)
	b, err := LoadBundle(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, []byte("nonsense"))
	changed, err := b.load()
	if refuses(t, "nonsense", err, "parse certificates"); changed {
		t.Error("nonsense is a change")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	changed, err = b.load()
	if refuses(t, "no file", err, "read certificates"); changed || string(b.PEM()) != string(one.pem) {
		t.Error("no file is a change")
	}
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	_, _, err = LoadSigner(file)
	refuses(t, "a key that is too short", err, "unknown public key type")

	w, _ := withIssuers(t, configuration(t, "v1", trusting(newIssuer(t))))
	if w.metrics.applied.Load() == nil {
		t.Error("a file in force is not told of")
	}
	j := &jwt{deps: Deps{Egress: &egress.Selector{}}}
	if dial, err := j.way(""); dial != nil || err != nil {
		t.Errorf("the ordinary way: %v", err)
	}
	for _, kind := range []apiserverconfig.EgressSelectorType{apiserverconfig.EgressSelectorCluster,
		apiserverconfig.EgressSelectorControlPlane, "other"} {
		_, err := j.way(kind)
		refuses(t, string(kind), err, "is not configured")
	}
}

// TestWaysToIssuers checks that an issuer is reached through the proxy in its configuration.
func TestWaysToIssuers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "egress.yaml")
	text := "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n"
	kinds := []apiserverconfig.EgressSelectorType{apiserverconfig.EgressSelectorCluster, apiserverconfig.EgressSelectorControlPlane}
	for _, kind := range kinds {
		text += "- {name: " + string(kind) + ", connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /nosuch/" + string(kind) +
			"}}}}\n"
	}
	write(t, file, []byte(text))
	ledger := extension.NewLedger(clock.RealClock{})
	ways, err := egress.Load(file, ledger)
	if err != nil {
		t.Fatal(err)
	}
	j := &jwt{deps: Deps{Egress: ways, Ledger: ledger}}
	for _, kind := range kinds {
		client, err := j.client(apiserverconfig.Issuer{URL: "https://issuer.invalid", EgressSelectorType: kind})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Get("https://issuer.invalid/keys")
		refuses(t, string(kind), err, "/nosuch/"+string(kind))
	}
}

// TestLongestKeyID checks the maximum length of an external signer's key ID.
func TestLongestKeyID(t *testing.T) {
	x := &External{now: time.Now}
	id := strings.Repeat("x", maxKeyID)
	x.held.Store(&heldKeys{keys: []Key{{ID: id}}})
	header := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","typ":"JWT","kid":"` + id + `"}`))
	refuses(t, "the longest", x.check(t.Context(), header), "")
}
