// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/mortise-dev/mortise/resource"
)

// signs signs arbitrary claims with the world's key.
func (w *world) signs(t testing.TB, claims any) string {
	t.Helper()
	b, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	token, err := w.Accounts().Signer.Sign(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// refuses fails the test unless an error contains a text; empty: there must be none.
func refuses(t testing.TB, what string, err error, want string) {
	t.Helper()
	if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

// TestClaims covers the allowed claims of a token with a valid signature.
func TestClaims(t *testing.T) {
	w := newWorld(t, Settings{}, nil)
	w.shelf.put("pods", "ns", "p", "pu", &corev1.Pod{})
	w.shelf.put("nodes", "", "n", "nu", &corev1.Node{})
	w.shelf.put("secrets", "ns", "s", "su", &corev1.Secret{})
	long := &metav1.Time{Time: w.now.Add(-2 * time.Minute)}
	w.shelf.put("pods", "ns", "old", "pu", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: long}})
	w.shelf.put("pods", "ns", "ending", "pu", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: w.now.Add(
		-time.Minute)}}})
	at := func(d time.Duration) int64 { return w.now.Add(d).Unix() }
	ours := func(more map[string]any) map[string]any {
		p := map[string]any{"namespace": "ns", "serviceaccount": map[string]any{"name": "sa", "uid": "u"}}
		maps.Copy(p, more)
		return map[string]any{"kubernetes.io": p}
	}
	of := func(name, uid string) map[string]any { return map[string]any{"name": name, "uid": uid} }
	for name, c := range map[string]struct {
		change map[string]any
		error  string
	}{
		"nothing more":              {nil, ""},
		"one audience":              {map[string]any{"aud": Issuer}, ""},
		"an audience that is none":  {map[string]any{"aud": 7}, "parse token claims"},
		"a fraction of a second":    {map[string]any{"exp": float64(at(time.Hour)) + 0.5}, ""},
		"an end that is no number":  {map[string]any{"exp": "soon"}, "parse token claims"},
		"an end beyond all numbers": {map[string]any{"exp": 1e300}, "is out of range"},
		"the largest number":        {map[string]any{"exp": int64(1) << 53}, ""},
		"a time below all numbers":  {map[string]any{"nbf": -1e300}, "is out of range"},
		"the smallest number":       {map[string]any{"nbf": -(int64(1) << 53)}, ""},
		"valid in a minute":         {map[string]any{"nbf": at(time.Minute)}, ""},
		"valid later":               {map[string]any{"nbf": at(61 * time.Second)}, "is not valid yet"},
		"expired a minute ago":      {map[string]any{"exp": at(-time.Minute)}, ""},
		"expired before":            {map[string]any{"exp": at(-61 * time.Second)}, "has expired"},
		"issued in a minute":        {map[string]any{"iat": at(time.Minute)}, ""},
		"issued later":              {map[string]any{"iat": at(61 * time.Second)}, "is issued in the future"},
		"a pod":                     {ours(map[string]any{"pod": of("p", "pu")}), ""},
		"a pod being deleted":       {ours(map[string]any{"pod": of("ending", "pu")}), ""},
		"a pod deleted long ago":    {ours(map[string]any{"pod": of("old", "pu")}), "has been invalidated"},
		"another node": {ours(map[string]any{"node": of("n", "x")}),
			"node UID (nu) does not match service account node ref claim (x)"},
		"another secret": {ours(map[string]any{"secret": of("s", "x")}),
			"secret UID (su) does not match service account secret ref claim (x)"},
		"a validating webhook":       {ours(map[string]any{"validatingwebhookconfiguration": of("x", "x")}), "token is webhook bound"},
		"a mutating webhook":         {ours(map[string]any{"mutatingwebhookconfiguration": of("x", "x")}), "token is webhook bound"},
		"another issuer":             {map[string]any{"iss": "https://elsewhere.example"}, ErrUnauthorized.Error()},
		"legacy, without a subject":  {map[string]any{"iss": legacyIssuer, "sub": ""}, "sub claim is missing"},
		"legacy, without all others": {map[string]any{"iss": legacyIssuer}, "namespace claim is missing"},
	} {
		claims := map[string]any{"iss": Issuer, "sub": "system:serviceaccount:ns:sa", "aud": []string{Issuer}}
		maps.Copy(claims, ours(nil))
		maps.Copy(claims, c.change)
		who, err := w.with(t.Context(), w.signs(t, claims))
		refuses(t, name, err, c.error)
		if err == nil && (who.GetName() != "system:serviceaccount:ns:sa" || who.GetUID() != "u") {
			t.Errorf("%s: %v", name, who)
		}
	}
	for late, want := range map[int64]string{0: "", 1: "subject: system:serviceaccount:ns:sa, seconds after warning threshold: 1"} {
		ctx := audit.WithAuditContext(t.Context())
		claims := map[string]any{"iss": Issuer, "sub": "system:serviceaccount:ns:sa", "aud": []string{Issuer}}
		maps.Copy(claims, ours(map[string]any{"warnafter": w.now.Unix() - late}))
		_, err := w.with(ctx, w.signs(t, claims))
		refuses(t, "a token to be warned of", err, "")
		if got := audit.AuditContextFrom(ctx).GetEventAnnotations()["authentication.k8s.io/stale-token"]; got != want {
			t.Errorf("%d s late: %q", late, got)
		}
	}
	_, err := w.with(t.Context(), w.signs(t, "no object"))
	refuses(t, "no claims", err, ErrUnauthorized.Error())
	_, err = w.with(t.Context(), strings.Repeat("x", maxToken+1))
	refuses(t, "a token without end", err, ErrUnauthorized.Error())
}

// TestUnknownKey checks that a token with a known issuer and an unknown key is an error, not a token of another issuer.
func TestUnknownKey(t *testing.T) {
	w := newWorld(t, Settings{}, nil)
	token := newWorld(t, Settings{}, nil).issue(t, resource.TokenClaims{})
	_, err := w.with(t.Context(), token)
	refuses(t, "an unknown key", err, "invalid signature, no keys found")
}

// TestLegacyClaims covers the claims of a secret's token, and the conditions under which it is valid.
func TestLegacyClaims(t *testing.T) {
	w, trusting := newWorld(t, Settings{}, nil), newWorld(t, Settings{Accounts: AccountSettings{NoLookup: true}}, nil)
	good := map[string]any{
		"iss": legacyIssuer, "sub": "system:serviceaccount:ns:sa", "kubernetes.io/serviceaccount/namespace": "ns",
		"kubernetes.io/serviceaccount/secret.name": "s", "kubernetes.io/serviceaccount/service-account.name": "sa",
		"kubernetes.io/serviceaccount/service-account.uid": "u",
	}
	without := func(name string, value any) map[string]any {
		c := maps.Clone(good)
		if c[name] = value; value == nil {
			delete(c, name)
		}
		return c
	}
	token := w.signs(t, good)
	put := func(change func(s *corev1.Secret, a *corev1.ServiceAccount)) {
		s, a := &corev1.Secret{Data: map[string][]byte{"token": []byte(token)}}, &corev1.ServiceAccount{}
		a.UID = "u"
		if change != nil {
			change(s, a)
		}
		w.shelf.put("secrets", "ns", "s", "su", s)
		w.shelf.put("serviceaccounts", "ns", "sa", string(a.UID), a)
	}
	put(nil)
	for what, c := range map[string]struct {
		claims map[string]any
		error  string
	}{
		"no secret":        {without("kubernetes.io/serviceaccount/secret.name", nil), "secretName claim is missing"},
		"no account":       {without("kubernetes.io/serviceaccount/service-account.name", nil), "serviceAccountName claim is missing"},
		"no uid":           {without("kubernetes.io/serviceaccount/service-account.uid", nil), "serviceAccountUID claim is missing"},
		"another subject":  {without("sub", "system:serviceaccount:ns:other"), "sub claim is invalid"},
		"another secret's": {without("kubernetes.io/serviceaccount/secret.name", "t"), "Token has been invalidated"},
	} {
		_, err := w.with(t.Context(), w.signs(t, c.claims))
		refuses(t, what, err, c.error)
		if c.error != "Token has been invalidated" {
			_, err := trusting.with(t.Context(), trusting.signs(t, c.claims))
			refuses(t, what+", without a look at the secret", err, c.error)
		}
	}
	colon := without("sub", "system:serviceaccount:ns:a:b")
	colon["kubernetes.io/serviceaccount/service-account.name"] = "a:b"
	_, err := w.with(t.Context(), w.signs(t, colon))
	refuses(t, "an account with a colon", err, "sub claim is invalid")
	_, err = trusting.with(t.Context(), trusting.signs(t, good))
	refuses(t, "without a look at the secret", err, "")

	gone := &metav1.Time{Time: w.now}
	for what, c := range map[string]struct {
		change func(s *corev1.Secret, a *corev1.ServiceAccount)
		error  string
	}{
		"good": {nil, ""},
		"the secret is being deleted": {func(s *corev1.Secret, _ *corev1.ServiceAccount) { s.DeletionTimestamp = gone },
			"Token has been invalidated"},
		"the account is": {func(_ *corev1.Secret, a *corev1.ServiceAccount) { a.DeletionTimestamp = gone },
			"ServiceAccount ns/sa has been deleted"},
		"the account is another": {func(_ *corev1.Secret, a *corev1.ServiceAccount) { a.UID = "v" },
			"ServiceAccount UID (v) does not match claim (u)"},
	} {
		put(c.change)
		_, err := w.with(t.Context(), token)
		refuses(t, what, err, c.error)
	}
	put(nil)
	w.shelf.remove("serviceaccounts", "ns", "sa")
	_, err = w.with(t.Context(), token)
	refuses(t, "no account", err, `serviceaccounts "sa" not found`)

	labels := 0
	w.accounts.deps.Label = func(context.Context, string, string, types.UID, string, string) error { labels++; return nil }
	for day, want := range map[string]int{"": 1, "2026-11-19": 1, "2026-11-20": 0, "2026-11-21": 0, "2026-11-22": 1} {
		put(func(s *corev1.Secret, _ *corev1.ServiceAccount) { s.Labels = map[string]string{lastUsedLabel: day} })
		labels = 0
		if _, err := w.with(t.Context(), token); err != nil || labels != want {
			t.Errorf("used on %q: labeled %d times, %v", day, labels, err)
		}
	}
	ctx := audit.WithAuditContext(t.Context())
	put(func(s *corev1.Secret, _ *corev1.ServiceAccount) {
		s.Labels = map[string]string{invalidSinceLabel: "2026-01-01"}
	})
	labels = 0
	_, err = w.with(ctx, token)
	refuses(t, "marked invalid", err, "has been marked invalid")
	if got := audit.AuditContextFrom(ctx).GetEventAnnotations()["authentication.k8s.io/legacy-token-invalidated"]; got != "s/ns" ||
		labels != 1 {
		t.Errorf("annotation %q, labeled %d times", got, labels)
	}
	ctx = audit.WithAuditContext(t.Context())
	put(func(_ *corev1.Secret, a *corev1.ServiceAccount) {
		a.Secrets = []corev1.ObjectReference{{Name: "s"}, {Name: "other"}}
	})
	_, err = w.with(ctx, token)
	refuses(t, "auto-generated", err, "")
	if got := audit.AuditContextFrom(ctx).GetEventAnnotations()["authentication.k8s.io/legacy-token-autogenerated-secret"]; got != "s" {
		t.Errorf("annotation %q", got)
	}
}

// failing is a store that cannot be read.
type failing struct{}

func (failing) Get(context.Context, schema.GroupResource, string, string) (resource.Object, error) {
	return nil, errors.New("the store is closed")
}

// TestBootstrapGroups covers the groups of a bootstrap token's user, and a store that cannot be read.
func TestBootstrapGroups(t *testing.T) {
	for list, want := range map[string][]string{
		"": {bootstrappers}, "system:bootstrappers:b,system:bootstrappers:a,system:bootstrappers:b": {bootstrappers, "system:bootstrappers:a",
			"system:bootstrappers:b"},
		"system:bootstrappers:a,": nil, "system:masters": nil,
	} {
		got, err := extraGroups(list)
		if (err == nil) != (want != nil) || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", list, got, err)
		}
	}
	b := &bootstrapTokens{objects: func() Objects { return failing{} }, now: time.Now}
	_, ok, err := b.AuthenticateToken(t.Context(), "abcdef.0123456789abcdef")
	if refuses(t, "a store that is closed", err, "the store is closed"); ok {
		t.Error("a token was taken")
	}
	_, ok, err = b.AuthenticateToken(t.Context(), "another token")
	if refuses(t, "no bootstrap token", err, ""); ok {
		t.Error("a token was taken")
	}
	w := newWorld(t, Settings{BootstrapTokens: true}, nil)
	_, err = w.with(t.Context(), "abcdef.0123456789abcdef")
	refuses(t, "no secret", err, ErrUnauthorized.Error())
}

// TestIssued covers the claims of tokens that the server signs.
func TestIssued(t *testing.T) {
	w := newWorld(t, Settings{Accounts: AccountSettings{MaxExpiration: time.Hour}}, nil)
	c := resource.TokenClaims{Namespace: "ns", ServiceAccount: "sa", ServiceAccountUID: "u", Seconds: 3600, SecretName: "s", SecretUID: "su",
		NodeName: "n", NodeUID: "nu"}
	ctx := audit.WithAuditContext(t.Context())
	issued, err := w.Accounts().Issue(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(issued.Audiences, []string{Issuer}) || issued.Seconds != 3600 {
		t.Errorf("issued %+v", issued)
	}
	read, _, err := w.accounts.signed(t.Context(), issued.Token)
	if err != nil {
		t.Fatal(err)
	}
	want := private{Namespace: "ns", ServiceAccount: ref{"sa", "u"}, Secret: &ref{"s", "su"}, Node: &ref{"n", "nu"}}
	if diff := cmp.Diff(want, read.Private); diff != "" {
		t.Error(diff)
	}
	if got := audit.AuditContextFrom(ctx).GetEventAnnotations()["authentication.kubernetes.io/issued-credential-id"]; got != "JTI="+read.ID {
		t.Errorf("annotation %q", got)
	}
	for _, c := range []struct {
		audiences []string
		want      bool
	}{{nil, false}, {[]string{Issuer}, true}, {[]string{Issuer, "vault"}, false}} {
		if got := w.accounts.serverOnly(c.audiences); got != c.want {
			t.Errorf("%v is for the server alone: %t", c.audiences, got)
		}
	}
	w.accounts.Signer = broken{}
	_, err = w.Accounts().Issue(t.Context(), c)
	refuses(t, "a signer that fails", err, "out of ink")
	_, err = w.Accounts().Legacy(t.Context(), "ns", "s", "sa", "u")
	refuses(t, "a signer that fails", err, "out of ink")
}

type broken struct{}

func (broken) Sign(context.Context, []byte) (string, error) { return "", errors.New("out of ink") }

// TestAudiences checks that the server accepts an authenticator's audiences only if it requested them.
func TestAudiences(t *testing.T) {
	for _, c := range []struct {
		own, has []string
		want     string
	}{
		{[]string{"a"}, []string{"a", "b"}, ""},
		{[]string{"a"}, []string{"b"}, "unable to match the audience: [b] , accepted: [a]"},
		{[]string{"a"}, nil, ""},
	} {
		w := newWorld(t, Settings{Audiences: c.own}, nil)
		if !slices.Equal(w.Audiences(), c.own) {
			t.Errorf("audiences %v", w.Audiences())
		}
		w.requests = []Authenticator{authenticator.RequestFunc(anybody(c.has))}
		_, err := w.with(t.Context(), "x")
		refuses(t, strings.Join(c.has, ","), err, c.want)
	}
	w := newWorld(t, Settings{}, nil)
	w.requests = []Authenticator{authenticator.RequestFunc(anybody([]string{"other"}))}
	if who, _, err := w.Verify(t.Context(), "x", []string{"vault"}); !errors.Is(err, ErrAudiences) || who != nil ||
		err.Error() != "error validating audiences" {
		t.Errorf("a token for others: %v, %v", who, err)
	}
	_, _, err := newWorld(t, Settings{}, nil).Verify(t.Context(), w.signs(t, map[string]any{"iss": Issuer}), nil)
	refuses(t, "a bad token", err, "[invalid bearer token, invalid signature, no keys found]")
}

// TestKeyFormats covers the keys that can sign, their algorithms, and rejected keys.
func TestKeyFormats(t *testing.T) {
	for _, c := range []struct {
		curve elliptic.Curve
		want  string
	}{{elliptic.P256(), "ES256"}, {elliptic.P384(), "ES384"}, {elliptic.P521(), "ES512"}, {elliptic.P224(), ""}} {
		key, err := ecdsa.GenerateKey(c.curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		alg, err := algorithm(&key.PublicKey)
		if string(alg) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s signs by %s, %v", c.curve.Params().Name, alg, err)
		}
		s, err := NewSigner(key)
		if (s != nil && err == nil) != (c.want != "") {
			t.Errorf("%s: signer %v, %v", c.curve.Params().Name, s, err)
		}
	}
	_, err := NewSigner("no key")
	refuses(t, "no key", err, "unknown private key type string")
	_, err = NewKeys("no key")
	refuses(t, "no key", err, "encode public key")
	dir := t.TempDir()
	_, err = LoadKeys(dir + "/none")
	refuses(t, "no file", err, "read service-account keys")
	_, _, err = LoadSigner(dir + "/none")
	refuses(t, "no file", err, "read service-account signing key")
}
