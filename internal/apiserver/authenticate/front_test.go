// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	v1 "k8s.io/externaljwt/apis/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
)

// anybody accepts every request, with a token for these audiences.
func anybody(audiences []string) func(*http.Request) (*authenticator.Response, bool, error) {
	return func(*http.Request) (*authenticator.Response, bool, error) {
		return &authenticator.Response{User: &user.DefaultInfo{Name: "ann@example.com", Groups: []string{Authenticated}}, Audiences: audiences},
			true, nil
	}
}

func shows(t testing.TB, certs ...*x509.Certificate) *http.Request {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	return r.WithContext(WithConnection(t.Context()))
}

// TestCertificateIsRemembered checks that a connection's certificate is cached until it or its CA is no longer valid.
func TestCertificateIsRemembered(t *testing.T) {
	ours, theirs, others := newAuthority(t, "ours"), newAuthority(t, "theirs"), newAuthority(t, "others")
	begin := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	now, left := begin, time.Duration(0)
	roots := x509.NewCertPool()
	roots.AddCert(ours.cert)
	further := theirs.bundle(t)
	c := &Certificate{Roots: roots, Further: further, Now: func() time.Time { return now }, Seen: func(d time.Duration) { left = d }}
	ask := func(r *http.Request) string {
		resp, ok, err := c.AuthenticateRequest(r)
		switch {
		case err != nil:
			return "error"
		case !ok:
			return "nobody"
		}
		return resp.User.GetName()
	}
	if got := ask(httptest.NewRequest(http.MethodGet, "/", nil)); got != "nobody" {
		t.Errorf("without TLS: %s", got)
	}
	if got := ask(shows(t)); got != "nobody" {
		t.Errorf("without a certificate: %s", got)
	}
	r := shows(t, theirs.sign(t, pkix.Name{CommonName: "alice"}, begin.Add(time.Hour)))
	if got := ask(r); got != "alice" || left != time.Hour {
		t.Errorf("%s, who has %s left", got, left)
	}
	first, _, err := c.AuthenticateRequest(r)
	if err != nil {
		t.Fatal(err)
	}
	now = begin.Add(time.Hour - time.Second)
	if again, _, err := c.AuthenticateRequest(r); again != first {
		t.Errorf("a second before the end it is verified again: %v, %v", again, err)
	}
	now = begin.Add(time.Hour + time.Second)
	if got := ask(r); got != "error" {
		t.Errorf("a second after the end: %s", got)
	}
	now = begin
	if got := ask(r); got != "alice" {
		t.Errorf("again: %s", got)
	}
	c.Further = others.bundle(t)
	if got := ask(r); got != "error" {
		t.Errorf("after the authority has gone: %s", got)
	}
	c.Further = further
	r.TLS.PeerCertificates[0] = theirs.sign(t, pkix.Name{CommonName: "bob"}, begin.Add(time.Hour))
	if got := ask(r); got != "bob" {
		t.Errorf("another certificate on the connection: %s", got)
	}
	c.Roots, c.Further = nil, nil
	if got := ask(shows(t, ours.sign(t, pkix.Name{CommonName: "alice"}, begin.Add(time.Hour)))); got != "error" {
		t.Errorf("without an authority: %s", got)
	}

	// a chain expires with its first certificate, and the user with the last chain
	short, long := ours.sign(t, pkix.Name{}, begin), ours.sign(t, pkix.Name{}, begin.Add(time.Hour))
	if got := ends([][]*x509.Certificate{{long, short}, {short}}); !got.Equal(begin) {
		t.Errorf("ends %s", got)
	}
	if got := ends([][]*x509.Certificate{{short, long}, {long}}); !got.Equal(begin.Add(time.Hour)) {
		t.Errorf("ends %s", got)
	}
}

// TestSubject covers the user in a certificate.
func TestSubject(t *testing.T) {
	name := func(values ...any) *x509.Certificate {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: "alice", Organization: []string{"dev"}}}
		c.Subject.Names = []pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 3}, Value: "alice"}}
		for _, v := range values {
			c.Subject.Names = append(c.Subject.Names, pkix.AttributeTypeAndValue{Type: UIDAttribute(), Value: v})
		}
		return c
	}
	for what, c := range map[string]struct {
		cert       *x509.Certificate
		uid, error string
	}{
		"no uid":      {name(), "", ""},
		"a uid":       {name("7"), "7", ""},
		"two":         {name("7", "8"), "", "expected 1 UID, but found multiple"},
		"an empty":    {name(""), "", "UID cannot be an empty string"},
		"a number":    {name(7), "", "unable to parse UID into a string"},
		"the nodes'":  {&x509.Certificate{Subject: pkix.Name{CommonName: KubeletClientName}}, "", "is for nodes alone"},
		"of nobody's": {&x509.Certificate{}, "", ""},
	} {
		resp, err := subject(c.cert, false)
		refuses(t, what, err, c.error)
		if err == nil && resp != nil && (resp.User.GetUID() != c.uid || resp.User.GetName() != "alice" || len(resp.User.GetExtra()) != 1) {
			t.Errorf("%s: %+v", what, resp.User)
		}
		if (resp != nil) != (err == nil && what != "of nobody's") {
			t.Errorf("%s: %+v", what, resp)
		}
	}
	if got, want := UIDAttribute().String(), "1.3.6.1.4.1.57683.2"; got != want { // in certificates of other issuers
		t.Errorf("uids are in attribute %s, want %s", got, want)
	}
	if resp, err := subject(name(), true); err != nil || len(resp.User.GetExtra()) != 0 {
		t.Errorf("the server's own: %+v, %v", resp, err)
	}
}

// TestFrontProxyHeaders checks which headers name the user, and that all are removed.
func TestFrontProxyHeaders(t *testing.T) {
	front := newAuthority(t, "front")
	f := &FrontProxy{Authorities: front.bundle(t), Headers: Headers{
		Username: []string{"X-First", "X-User"}, UID: []string{"X-Uid"}, Group: []string{"X-Group", "X-Team"},
		ExtraPrefixes: []string{"X-Extra-", "X-More-"},
	}}
	now := time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)
	a := f.authenticator(func() time.Time { return now })
	r := shows(t, front.sign(t, pkix.Name{CommonName: "any"}, now.Add(time.Hour)))
	r.Header = http.Header{
		"X-User": {"carol"}, "X-Uid": {"7"}, "X-Group": {"a", ""}, "X-Team": {"b"}, "X-Extra-A%2fb": {"1", "2"}, "X-More-%zz": {"3"},
		"X-Extra-": {"4"}, "Other": {"5"}, "X": {"6"},
	}
	resp, ok, err := a.AuthenticateRequest(r)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	want := &user.DefaultInfo{Name: "carol", UID: "7", Groups: []string{"a", "b"},
		Extra: map[string][]string{"a/b": {"1", "2"}, "%zz": {"3"}, "": {"4"}}}
	if diff := cmp.Diff(want, resp.User); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(http.Header{"Other": {"5"}, "X": {"6"}}, r.Header); diff != "" {
		t.Errorf("headers stay: %s", diff)
	}
	r.Header = http.Header{"X-Uid": {"7"}}
	if _, ok, err := a.AuthenticateRequest(r); ok || err != nil {
		t.Errorf("without a name: %t, %v", ok, err)
	}
	// without a front proxy the standard headers are removed as well
	w := newWorld(t, Settings{}, nil)
	r = httptest.NewRequest(http.MethodGet, "/", nil)
	for _, want := range []http.Header{{"Other": {"5"}}, {}} {
		r.Header = want.Clone()
		r.Header["X-Remote-User"], r.Header["X-Remote-Extra-K"] = []string{"carol"}, []string{"v"}
		if who, err := w.Authenticate(r); err != nil || who.GetName() != AnonymousUser {
			t.Errorf("who %v, %v", who, err)
		}
		if diff := cmp.Diff(want, r.Header); diff != "" {
			t.Errorf("headers stay: %s", diff)
		}
	}
}

// TestCounts checks that each result is counted, and that only a few users have their own series.
func TestCounts(t *testing.T) {
	w := newWorld(t, Settings{ServerID: "me", Anonymous: &apiserverconfig.AnonymousAuthConfig{}}, nil)
	_, _ = w.Authenticate(httptest.NewRequest(http.MethodGet, "/", nil)) // a failure
	_, _ = w.with(t.Context(), "x")                                      // an error
	w.requests = []Authenticator{authenticator.RequestFunc(anybody(nil))}
	who, err := w.with(t.Context(), "x")
	if err != nil || !slices.Equal(who.GetGroups(), []string{Authenticated}) {
		t.Errorf("who %v, %v", who, err)
	}
	w.requests = []Authenticator{authenticator.RequestFunc(anybody([]string{"others"}))}
	_, _ = w.with(t.Context(), "x") // an error
	for _, name := range []string{"admin", "jane"} {
		w.metrics.observe(name, "success", time.Second)
	}
	w.metrics.reloaded("me", false, w.now, nil)
	w.metrics.reloaded("me", true, w.now, []byte("file"))
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.Metrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	const reloads = "apiserver_authentication_config_controller_automatic_reload"
	me := hashed("me")
	for name, want := range map[string]float64{
		"authentication_attempts success": 3, "authentication_attempts failure": 1, "authentication_attempts error": 2,
		"authentication_duration_seconds error": 2, "authenticated_user_requests email_id": 1, "authenticated_user_requests other": 1,
		"authenticated_user_requests admin": 1, reloads + "s_total " + me + " failure": 1, reloads + "s_total " + me + " success": 1,
		reloads + "_last_timestamp_seconds " + me + " failure":                                     float64(w.now.Unix()),
		"apiserver_authentication_config_controller_last_config_info " + me + " " + hashed("file"): 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if hashed("") != "" {
		t.Error("nothing has a hash")
	}
}

// TestBundle checks that the CAs of a file are read again when it changes, and that an invalid file changes nothing.
func TestBundle(t *testing.T) {
	one, two := newAuthority(t, "one"), newAuthority(t, "two")
	file := filepath.Join(t.TempDir(), "ca.pem")
	_, err := LoadBundle(file)
	refuses(t, "no file", err, "read certificates")
	write(t, file, []byte("nonsense"))
	_, err = LoadBundle(file)
	refuses(t, "no certificates", err, "parse certificates")
	_, err = NewBundle([]byte("nonsense"))
	refuses(t, "no certificates", err, "parse certificates")
	write(t, file, one.pem)
	b, err := LoadBundle(file)
	if err != nil {
		t.Fatal(err)
	}
	if !b.Overlaps(one.bundle(t)) || b.Overlaps(two.bundle(t)) || string(b.PEM()) != string(one.pem) {
		t.Error("the file is not what was read")
	}
	if changed, err := b.load(); changed || err != nil {
		t.Errorf("the same file: changed %t, %v", changed, err)
	}
	told := make(chan string, 10)
	b.OnChange(func() { told <- string(b.PEM()) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx, quiet()) }()
	write(t, file, []byte("nonsense"))
	write(t, file, two.pem)
	if got := <-told; got != string(two.pem) || !b.Overlaps(two.bundle(t)) {
		t.Errorf("changed to %s", got)
	}
	cancel()
	<-ended
	if len(told) != 0 {
		t.Error("it is told of what did not change")
	}
	fixed, ended := one.bundle(t), make(chan struct{})
	ctx, cancel = context.WithCancel(t.Context())
	go func() { defer close(ended); fixed.Run(ctx, quiet()) }()
	select {
	case <-ended:
		t.Error("it ends by itself")
	default:
	}
	cancel()
	<-ended
}

// TestDiscoveryDocuments covers which issuers have documents, and their contents.
func TestDiscoveryDocuments(t *testing.T) {
	for issuer, want := range map[string]bool{"https://a.example": true, "http://a.example": false, "https://a.example?q=1": false,
		"https://a.example#f": false, "://": false} {
		a := newWorld(t, Settings{Accounts: AccountSettings{Issuers: []string{issuer}, JWKSURI: "https://keys.example/x"}}, nil).Accounts()
		config, keys, _, ok, err := a.Discovery("x")
		if ok != want || err != nil || want && (!strings.Contains(string(config), `"jwks_uri":"https://keys.example/x"`) || len(keys) == 0) {
			t.Errorf("%s: %t %s %v", issuer, ok, config, err)
		}
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewKeys(public)
	if err != nil {
		t.Fatal(err)
	}
	_, _, _, ok, err := newWorld(t, Settings{Accounts: AccountSettings{Keys: keys}}, nil).Accounts().Discovery("x")
	if refuses(t, "a key of another kind", err, "unknown public key type"); !ok {
		t.Error("there are no documents")
	}
}

// TestExternalKeys covers which keys of an external signer are accepted.
func TestExternalKeys(t *testing.T) {
	der, err := x509.MarshalPKIXPublicKey(&ecdsaKey(t).PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	x := &External{now: func() time.Time { return now }}
	good := func(id string) []*v1.Key { return []*v1.Key{{KeyId: id, Key: der}} }
	for what, c := range map[string]struct {
		said  *v1.FetchKeysResponse
		error string
	}{
		"good": {&v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 1, Keys: good("a")}, ""},
		"the longest name": {&v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 1,
			Keys: good(strings.Repeat("x", 1024))}, ""},
		"a longer": {&v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 1, Keys: good(strings.Repeat("x", 1025))},
			"found invalid public key id"},
		"no name": {&v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 1, Keys: good("")},
			"found invalid public key id"},
		"no key": {&v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 1, Keys: []*v1.Key{nil}},
			"found nil public key"},
		"nonsense": {&v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), RefreshHintSeconds: 1,
			Keys: []*v1.Key{{KeyId: "a", Key: []byte("x")}}}, "parse public key"},
		"no hint": {&v1.FetchKeysResponse{DataTimestamp: timestamppb.Now(), Keys: good("a")}, "found invalid refresh hint"},
		"no time": {&v1.FetchKeysResponse{RefreshHintSeconds: 1, Keys: good("a")}, "invalid data timestamp"},
	} {
		h, err := x.read(c.said)
		refuses(t, what, err, c.error)
		if err == nil && (len(h.keys) != 1 || !h.refresh.Equal(time.Unix(1001, 0)) || !h.fetched.Equal(now)) {
			t.Errorf("%s: %+v", what, h)
		}
	}
	for _, header := range []string{"%", base64.RawURLEncoding.EncodeToString([]byte("{"))} {
		if x.check(t.Context(), header) == nil {
			t.Errorf("the header %q is taken", header)
		}
	}
	for want, err := range map[string]error{"OK": nil, "NotFound": fmt.Errorf("x: %w", status.Error(codes.NotFound, "y")),
		"unknown-non-grpc": errors.New("x")} {
		if got := code(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
	x.held.Store(&heldKeys{refresh: now.Add(-time.Hour)})
	if x.MaxAge() != 0 {
		t.Errorf("keys may be kept for %d s", x.MaxAge())
	}
	x.held.Store(&heldKeys{refresh: now.Add(time.Hour), keys: []Key{{ID: "a"}, {ID: "b"}}})
	if x.MaxAge() != 3600 || len(x.held.Load().find("")) != 2 || len(x.held.Load().find("b")) != 1 {
		t.Errorf("keys may be kept for %d s", x.MaxAge())
	}
}

// TestExternalSignerRuns checks that the keys are fetched in time, and that the connection ends with Run.
func TestExternalSignerRuns(t *testing.T) {
	p := &signingProcess{keys: map[string]*ecdsa.PrivateKey{"a": ecdsaKey(t)}, sign: "a", most: 600}
	late := make(chan time.Duration, 1)
	late <- 0
	now := func() time.Time { d := <-late; late <- d; return time.Unix(1e9, 0).Add(d) }
	x, err := DialExternal(t.Context(), p.listen(t), extension.NewLedger(clock.RealClock{}), now)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Settings{Accounts: AccountSettings{Signer: x, Keys: x}}, nil)
	if x.MaxExpiration() != 10*time.Minute || x.Generation() != 1 {
		t.Errorf("lives %s, generation %d", x.MaxExpiration(), x.Generation())
	}
	metrics := func(fetched, signed, at float64) {
		t.Helper()
		var fetchedAt, keysOf dto.Metric
		if err := errors.Join(w.metrics.fetchedAt.WithLabelValues().Write(&fetchedAt),
			w.metrics.keysOf.WithLabelValues().Write(&keysOf)); err != nil {
			t.Fatal(err)
		}
		if n := counted(w.metrics.fetched.WithLabelValues("OK")); n != fetched || fetchedAt.GetGauge().GetValue() != at ||
			keysOf.GetGauge().GetValue() == 0 {
			t.Errorf("keys were fetched %v times, at last at %v", n, fetchedAt.GetGauge())
		}
		if n := counted(w.metrics.signed.WithLabelValues("OK")); n != signed {
			t.Errorf("%v tokens were signed", n)
		}
	}
	metrics(1, 0, 1e9)
	<-late
	late <- 2 * time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	eventually(t, "the keys are fetched again", func() bool { return x.Generation() == 2 })
	p.mu.Lock()
	p.header = map[string]string{"alg": "ES256", "kid": "a", "typ": "JWT"}
	p.mu.Unlock()
	if _, err := x.Sign(t.Context(), []byte("{}")); err != nil {
		t.Errorf("a good header: %v", err)
	}
	metrics(2, 1, 1e9+7200)
	p.mu.Lock()
	p.keys["b"] = ecdsaKey(t)
	p.mu.Unlock()
	for i, id := range []string{"a", "b", "b", "c"} {
		found := x.Find(t.Context(), id)
		if len(found) == 1 != (id != "c") || x.Generation() != []uint64{2, 3, 3, 4}[i] {
			t.Errorf("key %s: found %v by fetching %d times", id, found, x.Generation())
		}
	}
	cancel()
	<-ended
	_, err = x.Sign(t.Context(), []byte("{}"))
	refuses(t, "after its end", err, "sign token: ")
	if x.fetch(t.Context()) == nil || len(x.Find(t.Context(), "unknown")) != 0 {
		t.Error("the connection is open after its end")
	}
}

// answers is a transport with a fixed response.
type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestBooked checks which responses count as failures of the extension, and that they are returned in any case.
func TestBooked(t *testing.T) {
	for _, c := range []struct {
		code   int
		err    error
		failed int64
	}{{200, nil, 0}, {399, nil, 0}, {400, nil, 1}, {0, io.ErrUnexpectedEOF, 1}} {
		ledger := extension.NewLedger(clock.RealClock{})
		b := &booked{ledger: ledger, ref: extension.Ref{Point: extension.OIDCIssuer, Name: "x"},
			next: answers(func(*http.Request) (*http.Response, error) {
				if c.err != nil {
					return nil, c.err
				}
				return &http.Response{StatusCode: c.code, Body: http.NoBody, Header: http.Header{}}, nil
			})}
		resp, err := b.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
		if err != c.err || (resp != nil) != (c.err == nil) || ledger.Snapshot()[0].Failures != c.failed {
			t.Errorf("%d, %v: %v, %v, %+v", c.code, c.err, resp, err, ledger.Snapshot())
		}
	}
	for _, c := range []struct{ has, want http.Header }{
		{http.Header{}, http.Header{}},
		{http.Header{"Cache-Control": {"max-age=9999"}}, http.Header{"Cache-Control": {"max-age=31"}}},
		{http.Header{"Expires": {"tomorrow"}}, http.Header{"Cache-Control": {"max-age=31"}}},
	} {
		s := &shortLived{answers(func(*http.Request) (*http.Response, error) { return &http.Response{Header: c.has.Clone()}, nil })}
		resp, err := s.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
		if diff := cmp.Diff(c.want, resp.Header); diff != "" || err != nil {
			t.Errorf("%v: %s, %v", c.has, diff, err)
		}
	}
	s := &shortLived{answers(func(*http.Request) (*http.Response, error) { return nil, io.EOF })}
	if _, err := s.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil)); !errors.Is(err, io.EOF) {
		t.Errorf("no answer: %v", err)
	}
}

// TestIssuersAreChecked covers invalid issuers in flags.
func TestIssuersAreChecked(t *testing.T) {
	i := newIssuer(t)
	prefix := "-"
	trust := func(change func(*apiserverconfig.JWTAuthenticator)) *apiserverconfig.AuthenticationConfiguration {
		j := apiserverconfig.JWTAuthenticator{
			Issuer:        apiserverconfig.Issuer{URL: i.URL, Audiences: []string{"a"}, CertificateAuthority: i.authority()},
			ClaimMappings: apiserverconfig.ClaimMappings{Username: apiserverconfig.PrefixedClaimOrExpression{Claim: "sub", Prefix: &prefix}},
		}
		if change != nil {
			change(&j)
		}
		return &apiserverconfig.AuthenticationConfiguration{JWT: []apiserverconfig.JWTAuthenticator{j}}
	}
	ledger := extension.NewLedger(clock.RealClock{})
	for what, c := range map[string]struct {
		s            JWTSettings
		check, build string
	}{
		"good": {JWTSettings{Config: trust(nil), Algorithms: []string{"ES256", "RS256"}}, "", ""},
		"an unknown algorithm": {JWTSettings{Config: trust(nil), Algorithms: []string{"ES256", "XS256"}}, `unsupported signing alg: "XS256"`,
			"unsupported signing alg"},
		"no certificates": {JWTSettings{Config: trust(func(j *apiserverconfig.JWTAuthenticator) { j.Issuer.CertificateAuthority = "x" })},
			"certificateAuthority", "read certificate authority"},
		"a way that nobody knows": {JWTSettings{Config: trust(
			func(j *apiserverconfig.JWTAuthenticator) { j.Issuer.EgressSelectorType = "cluster" })},
			"", "egress lookup must be configured"},
		"plain HTTP": {JWTSettings{Config: trust(func(j *apiserverconfig.JWTAuthenticator) { j.Issuer.URL = "http://x" })},
			"invalid authentication configuration", ""},
	} {
		refuses(t, what, c.s.Check(nil), c.check)
		if what == "plain HTTP" {
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, err := New(ctx, Settings{JWT: &c.s}, nil, Deps{Ledger: ledger})
		refuses(t, what, err, c.build)
		cancel()
	}
	if e := ledger.Snapshot(); len(e) != 1 || e[0].Name != i.URL || e[0].Where != "--oidc-issuer-url" {
		t.Errorf("the ledger has %+v", e)
	}
	_, err := LoadJWT(filepath.Join(t.TempDir(), "none"), nil)
	refuses(t, "no file", err, "read authentication configuration")
}

// TestLoadedKeys checks that a signer and its public half are read from a file.
func TestLoadedKeys(t *testing.T) {
	der, err := x509.MarshalECPrivateKey(ecdsaKey(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sa.key")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	s, public, err := LoadSigner(file)
	if err != nil {
		t.Fatal(err)
	}
	found, err := LoadKeys(file, file)
	if err != nil || len(found) != 2 || !found[0].(*ecdsa.PublicKey).Equal(public) {
		t.Fatalf("%v, %v", found, err)
	}
	keys, err := NewKeys(found[0])
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Settings{Accounts: AccountSettings{Signer: s, Keys: keys}}, nil)
	if !w.knows(t, w.issue(t, claimsOf())) {
		t.Error("what it signs is not known")
	}
}
