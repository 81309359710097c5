// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// shelf is a store of objects.
type shelf struct {
	mu      sync.Mutex
	objects map[string]resource.Object
}

func (s *shelf) put(r, namespace, name, uid string, obj resource.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	obj.SetNamespace(namespace)
	obj.SetName(name)
	obj.SetUID(types.UID(uid))
	s.objects[r+"/"+namespace+"/"+name] = obj
}

func (s *shelf) remove(r, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, r+"/"+namespace+"/"+name)
}

func (s *shelf) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[r.Resource+"/"+namespace+"/"+name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (s *shelf) label(ctx context.Context, namespace, name string, uid types.UID, key, value string) error {
	o, err := s.Get(ctx, secrets, namespace, name)
	if err != nil {
		return err
	}
	o = o.DeepCopyObject().(resource.Object)
	labels := map[string]string{key: value}
	for k, v := range o.GetLabels() {
		if k != key {
			labels[k] = v
		}
	}
	o.SetLabels(labels)
	s.put("secrets", namespace, name, string(uid), o)
	return nil
}

// world is a server's authentication with its dependencies.
type world struct {
	*Authenticators
	shelf  *shelf
	now    time.Time
	ledger *extension.Ledger
}

func newWorld(t testing.TB, s Settings, own *Certificate) *world {
	t.Helper()
	w := &world{shelf: &shelf{objects: map[string]resource.Object{}}, now: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC),
		ledger: extension.NewLedger(clock.RealClock{})}
	if s.Accounts.Signer == nil {
		signer, err := NewSigner(ecdsaKey(t))
		if err != nil {
			t.Fatal(err)
		}
		s.Accounts.Signer = signer
	}
	a, err := New(t.Context(), s, own, Deps{Objects: func() Objects { return w.shelf }, Label: w.shelf.label, Ledger: w.ledger,
		Now: func() time.Time { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	w.Authenticators = a
	w.shelf.put("serviceaccounts", "ns", "sa", "u", &corev1.ServiceAccount{})
	return w
}

func ecdsaKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) issue(t testing.TB, c resource.TokenClaims) string {
	t.Helper()
	c.Namespace, c.ServiceAccount, c.ServiceAccountUID = "ns", "sa", "u"
	if c.Seconds == 0 {
		c.Seconds = 3600
	}
	issued, err := w.Accounts().Issue(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return issued.Token
}

// with authenticates a request with a bearer token.
func (w *world) with(ctx context.Context, token string) (user.Info, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	r.Header.Set("Authorization", "Bearer "+token)
	return w.Authenticate(r)
}

func TestServiceAccountTokens(t *testing.T) {
	w := newWorld(t, Settings{}, nil)
	w.shelf.put("pods", "ns", "p", "pu", &corev1.Pod{})
	w.shelf.put("nodes", "", "n", "nu", &corev1.Node{})
	w.shelf.put("secrets", "ns", "s", "su", &corev1.Secret{})
	begin := w.now
	for _, c := range []struct {
		name   string
		claims resource.TokenClaims
		change func()
		back   func()
		error  string
	}{
		{name: "plain"},
		{name: "pod", claims: resource.TokenClaims{PodName: "p", PodUID: "pu", NodeName: "gone", NodeUID: "x"}},
		{name: "node", claims: resource.TokenClaims{NodeName: "n", NodeUID: "nu"}},
		{name: "secret", claims: resource.TokenClaims{SecretName: "s", SecretUID: "su"}},
		{name: "pod is gone", claims: resource.TokenClaims{PodName: "p", PodUID: "pu"},
			change: func() { w.shelf.remove("pods", "ns", "p") }, back: func() { w.shelf.put("pods", "ns", "p", "pu", &corev1.Pod{}) },
			error: "service account token has been invalidated"},
		{name: "pod is another", claims: resource.TokenClaims{PodName: "p", PodUID: "pu"},
			change: func() { w.shelf.put("pods", "ns", "p", "other", &corev1.Pod{}) },
			back:   func() { w.shelf.put("pods", "ns", "p", "pu", &corev1.Pod{}) },
			error:  "pod UID (other) does not match service account pod ref claim (pu)"},
		{name: "node is gone", claims: resource.TokenClaims{NodeName: "n", NodeUID: "nu"},
			change: func() { w.shelf.remove("nodes", "", "n") }, back: func() { w.shelf.put("nodes", "", "n", "nu", &corev1.Node{}) },
			error: "service account token has been invalidated"},
		{name: "secret is gone", claims: resource.TokenClaims{SecretName: "s", SecretUID: "su"},
			change: func() { w.shelf.remove("secrets", "ns", "s") }, back: func() { w.shelf.put("secrets", "ns", "s", "su", &corev1.Secret{}) },
			error: "service account token has been invalidated"},
		{name: "account is gone", change: func() { w.shelf.remove("serviceaccounts", "ns", "sa") },
			back: func() { w.shelf.put("serviceaccounts", "ns", "sa", "u", &corev1.ServiceAccount{}) }, error: `serviceaccounts "sa" not found`},
		{name: "account is another", change: func() { w.shelf.put("serviceaccounts", "ns", "sa", "v", &corev1.ServiceAccount{}) },
			back:  func() { w.shelf.put("serviceaccounts", "ns", "sa", "u", &corev1.ServiceAccount{}) },
			error: "service account UID (v) does not match claim (u)"},
		{name: "account is being deleted, since now", change: func() {
			w.shelf.put("serviceaccounts", "ns", "sa", "u",
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: begin}}})
		}, back: func() { w.shelf.put("serviceaccounts", "ns", "sa", "u", &corev1.ServiceAccount{}) }},
		{name: "account is being deleted, for long", change: func() {
			w.shelf.put("serviceaccounts", "ns", "sa", "u",
				&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: begin.Add(-2 * time.Minute)}}})
		}, back: func() { w.shelf.put("serviceaccounts", "ns", "sa", "u", &corev1.ServiceAccount{}) },
			error: "service account ns/sa has been deleted"},
		{name: "at its end", change: func() { w.now = begin.Add(time.Hour) }},
		{name: "expired, and clocks may differ", change: func() { w.now = begin.Add(time.Hour + 61*time.Second) },
			error: "service account token has expired"},
		{name: "not valid yet", change: func() { w.now = begin.Add(-61 * time.Second) }, error: "service account token is not valid yet"},
		{name: "for others", claims: resource.TokenClaims{Audiences: []string{"vault"}},
			error: `token audiences ["vault"] is invalid for the target audiences ["https://kubernetes.default.svc.cluster.local"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			w.now = begin
			token := w.issue(t, c.claims)
			if c.error == "" || c.change != nil { // so that it is cached
				if _, err := w.with(t.Context(), token); err != nil {
					t.Fatalf("before: %v", err)
				}
			}
			if c.change != nil {
				c.change()
			}
			who, err := w.with(t.Context(), token)
			if c.back != nil {
				c.back()
			}
			w.now = begin
			if c.error != "" {
				if err == nil || err.Error() != c.error && !strings.Contains(err.Error(), c.error) {
					t.Errorf("error %v, want %s", err, c.error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"}
			if who.GetName() != "system:serviceaccount:ns:sa" || who.GetUID() != "u" || !slices.Equal(who.GetGroups(), want) {
				t.Errorf("who: %+v", who)
			}
			if id := who.GetExtra()["authentication.kubernetes.io/credential-id"]; len(id) != 1 || !strings.HasPrefix(id[0], "JTI=") {
				t.Errorf("credential: %v", id)
			}
			if c.claims.PodName != "" && who.GetExtra()["authentication.kubernetes.io/pod-name"][0] != "p" {
				t.Errorf("extra: %v", who.GetExtra())
			}
			if c.claims.NodeName != "" && who.GetExtra()["authentication.kubernetes.io/node-name"][0] != c.claims.NodeName {
				t.Errorf("extra: %v", who.GetExtra())
			}
		})
	}
}

// TestForgedTokens covers invalid signatures.
func TestForgedTokens(t *testing.T) {
	w, stranger := newWorld(t, Settings{}, nil), newWorld(t, Settings{}, nil)
	token := w.issue(t, resource.TokenClaims{})
	parts := strings.Split(token, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	sum, _ := base64.RawURLEncoding.DecodeString(parts[2])
	sum[len(sum)-1] ^= 1
	if _, err := w.with(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"of another server": stranger.issue(t, resource.TokenClaims{}),
		"unsigned":          none + "." + parts[1] + ".",
		"alg none, signed":  none + "." + parts[1] + "." + parts[2],
		"another signature": parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(sum),
		"cut":               token[:len(token)-2],
		"two parts":         parts[0] + "." + parts[1],
		"no token":          "x",
		"JSON form":         `{"payload":"` + parts[1] + `"}`,
		"another claim": parts[0] + "." + base64.RawURLEncoding.EncodeToString(
			[]byte(`{"iss":"https://kubernetes.default.svc.cluster.local","sub":"system:serviceaccount:kube-system:admin"}`)) + "." + parts[2],
	} {
		who, err := w.with(t.Context(), bad)
		if err == nil {
			t.Errorf("%s: taken as %v", name, who)
		}
		if name == "unsigned" && !strings.Contains(err.Error(), "go-jose/go-jose: error in cryptographic primitive") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeys covers several keys, their rotation, and several issuers.
func TestKeys(t *testing.T) {
	old, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	oldSigner, err := NewSigner(old)
	if err != nil {
		t.Fatal(err)
	}
	new := ecdsaKey(t)
	signer, err := NewSigner(new)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := NewKeys(&new.PublicKey, &old.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	before := newWorld(t, Settings{Accounts: AccountSettings{Issuers: []string{"https://old.example"}, Signer: oldSigner}}, nil)
	after := newWorld(t, Settings{Accounts: AccountSettings{Issuers: []string{"https://new.example", "https://old.example"}, Signer: signer,
		Keys: keys}}, nil)
	token := before.issue(t, resource.TokenClaims{})
	if _, err := after.with(t.Context(), token); err != nil {
		t.Errorf("after rotation: %v", err)
	}
	if _, err := before.with(t.Context(), after.issue(t, resource.TokenClaims{})); err == nil {
		t.Error("a token of another issuer was taken")
	}
	config, set, age, ok, err := after.Accounts().Discovery("1.2.3.4:6443")
	if err != nil || !ok || age != 3600 {
		t.Fatalf("discovery: %v %v %d", err, ok, age)
	}
	if want := `{"issuer":"https://new.example","jwks_uri":"https://1.2.3.4:6443/openid/v1/jwks","response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256","RS256"]}`; string(config) != want {
		t.Errorf("discovery: %s", config)
	}
	if strings.Count(string(set), `"kid"`) != 2 || strings.Contains(string(set), `"d":`) {
		t.Errorf("keys: %s", set)
	}
	if _, _, _, ok, _ := newWorld(t, Settings{Accounts: AccountSettings{Issuers: []string{"no-url"}}}, nil).Accounts().Discovery("x"); ok {
		t.Error("discovery of an issuer that is no URL")
	}
}

// TestExpirations checks the lifetime of a token against the requested one.
func TestExpirations(t *testing.T) {
	for _, c := range []struct {
		name                 string
		settings             AccountSettings
		claims               resource.TokenClaims
		said, lives, warning int64
	}{
		{name: "as asked", claims: resource.TokenClaims{Seconds: 600}, said: 600, lives: 600},
		{name: "shortened", settings: AccountSettings{MaxExpiration: time.Hour}, claims: resource.TokenClaims{Seconds: 7200}, said: 3600,
			lives: 3600, warning: 1},
		{name: "a pod's default", claims: resource.TokenClaims{Seconds: 3607, PodName: "p", PodUID: "pu"}, said: 3607, lives: yearSeconds},
		{name: "a pod's default, not extended", settings: AccountSettings{NoExtend: true},
			claims: resource.TokenClaims{Seconds: 3607, PodName: "p", PodUID: "pu"}, said: 3607, lives: 3607},
		{name: "without a pod", claims: resource.TokenClaims{Seconds: 3607}, said: 3607, lives: 3607},
		{name: "for others", claims: resource.TokenClaims{Seconds: 3607, PodName: "p", PodUID: "pu", Audiences: []string{"x"}}, said: 3607,
			lives: 3607},
		{name: "a signer's most", settings: AccountSettings{MaxExtended: 2 * time.Hour},
			claims: resource.TokenClaims{Seconds: 3607, PodName: "p", PodUID: "pu"}, said: 3607, lives: 7200},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Settings{Accounts: c.settings}, nil)
			w.shelf.put("pods", "ns", "p", "pu", &corev1.Pod{})
			c.claims.Namespace, c.claims.ServiceAccount, c.claims.ServiceAccountUID = "ns", "sa", "u"
			warned := &warnings{}
			issued, err := w.Accounts().Issue(warning.WithWarningRecorder(t.Context(), warned), c.claims)
			if err != nil {
				t.Fatal(err)
			}
			read, _, err := w.accounts.signed(t.Context(), issued.Token)
			if err != nil {
				t.Fatal(err)
			}
			if issued.Seconds != c.said || !issued.Expires.Time.Equal(w.now.Add(time.Duration(c.said)*time.Second)) ||
				int64(read.Expires)-w.now.Unix() != c.lives || int64(len(*warned)) != c.warning {
				t.Errorf("says %d until %v, lives %d, warned %q", issued.Seconds, issued.Expires, int64(read.Expires)-w.now.Unix(), *warned)
			}
			if c.lives <= c.said || c.lives != yearSeconds {
				return
			}
			ctx := audit.WithAuditContext(t.Context()) // the use of a token after its requested lifetime is recorded
			w.now = w.now.Add(2 * time.Hour)
			if _, err := w.with(ctx, issued.Token); err != nil {
				t.Fatal(err)
			}
			if got := audit.AuditContextFrom(ctx).GetEventAnnotations()["authentication.k8s.io/stale-token"]; got != "subject: system:serviceaccount:ns:sa, seconds after warning threshold: 3593" {
				t.Errorf("annotation: %q", got)
			}
		})
	}
}

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

func TestLegacyTokens(t *testing.T) {
	w := newWorld(t, Settings{}, nil)
	token, err := w.Accounts().Legacy(t.Context(), "ns", "s", "sa", "u")
	if err != nil {
		t.Fatal(err)
	}
	put := func(change func(*corev1.Secret)) {
		s := &corev1.Secret{Data: map[string][]byte{"token": []byte(token)}}
		if change != nil {
			change(s)
		}
		w.shelf.put("secrets", "ns", "s", "su", s)
	}
	if _, err := w.with(t.Context(), token); err == nil || !strings.Contains(err.Error(), "Token has been invalidated") {
		t.Errorf("without a secret: %v", err)
	}
	put(func(s *corev1.Secret) { s.Data["token"] = []byte("other") })
	if _, err := w.with(t.Context(), token); err == nil || !strings.Contains(err.Error(), "Token does not match server's copy") {
		t.Errorf("another token: %v", err)
	}
	put(nil)
	ctx := audit.WithAuditContext(t.Context())
	who, err := w.with(ctx, token)
	if err != nil || who.GetName() != "system:serviceaccount:ns:sa" || len(who.GetExtra()) != 0 {
		t.Fatalf("who %v, error %v", who, err)
	}
	got := audit.AuditContextFrom(ctx).GetEventAnnotations()
	if got["authentication.k8s.io/legacy-token"] != "system:serviceaccount:ns:sa" ||
		got["authentication.k8s.io/legacy-token-manual-secret"] != "s" {
		t.Errorf("annotations: %v", got)
	}
	obj, _ := w.shelf.Get(t.Context(), secrets, "ns", "s")
	if day := obj.GetLabels()[lastUsedLabel]; day != "2026-11-20" {
		t.Errorf("last used: %q", day)
	}
	w.shelf.put("serviceaccounts", "ns", "sa", "u", &corev1.ServiceAccount{Secrets: []corev1.ObjectReference{{Name: "s"}}})
	warned := &warnings{}
	if _, err := w.with(warning.WithWarningRecorder(t.Context(), warned), token); err != nil || len(*warned) != 1 ||
		!strings.HasPrefix((*warned)[0], "Use tokens from the TokenRequest API") {
		t.Errorf("auto-generated: %v %q", err, *warned)
	}
	put(func(s *corev1.Secret) { s.Labels = map[string]string{invalidSinceLabel: "2026-01-01"} })
	if _, err := w.with(t.Context(), token); err == nil || !strings.Contains(err.Error(), "has been marked invalid") {
		t.Errorf("marked invalid: %v", err)
	}
}

func TestBootstrapTokens(t *testing.T) {
	w := newWorld(t, Settings{BootstrapTokens: true}, nil)
	data := func() map[string][]byte {
		return map[string][]byte{
			"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
			"auth-extra-groups": []byte("system:bootstrappers:workers"), "expiration": []byte("2026-11-20T13:00:00Z"),
		}
	}
	for _, c := range []struct {
		name   string
		change func(s *corev1.Secret)
		ok     bool
	}{
		{"good", func(*corev1.Secret) {}, true},
		{"without end", func(s *corev1.Secret) { delete(s.Data, "expiration") }, true},
		{"expired", func(s *corev1.Secret) { s.Data["expiration"] = []byte("2026-11-20T12:00:00Z") }, false},
		{"end that is no time", func(s *corev1.Secret) { s.Data["expiration"] = []byte("soon") }, false},
		{"another secret", func(s *corev1.Secret) { s.Data["token-secret"] = []byte("x123456789abcdef") }, false},
		{"another id", func(s *corev1.Secret) { s.Data["token-id"] = []byte("bbcdef") }, false},
		{"another type", func(s *corev1.Secret) { s.Type = "Opaque" }, false},
		{"not for this", func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }, false},
		{"group of others", func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }, false},
		{"being deleted", func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: w.now} }, false},
	} {
		s := &corev1.Secret{Type: bootstrapType, Data: data()}
		c.change(s)
		w.shelf.put("secrets", "kube-system", "bootstrap-token-abcdef", "x", s)
		who, err := w.with(t.Context(), "abcdef.0123456789abcdef")
		if (err == nil) != c.ok {
			t.Errorf("%s: %v %v", c.name, who, err)
		}
		if !c.ok && err != nil && err.Error() != "invalid bearer token" {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.name == "good" && (who == nil || who.GetName() != "system:bootstrap:abcdef" ||
			!slices.Equal(who.GetGroups(), []string{"system:bootstrappers", "system:bootstrappers:workers", Authenticated})) {
			t.Errorf("who: %v", who)
		}
	}
}

func TestVerify(t *testing.T) {
	w := newWorld(t, Settings{}, nil)
	for _, c := range []struct {
		name        string
		has, wanted []string
		shared      []string
		ok          bool
	}{
		{name: "the server's own", shared: []string{Issuer}, ok: true},
		{name: "others'", has: []string{"vault", "y"}, wanted: []string{"x", "vault"}, shared: []string{"vault"}, ok: true},
		{name: "nobody's", has: []string{"vault"}, wanted: []string{"x"}},
		{name: "not the server's", has: []string{"vault"}},
		{name: "server's, wanted by others", wanted: []string{"vault"}},
	} {
		who, shared, err := w.Verify(t.Context(), w.issue(t, resource.TokenClaims{Audiences: c.has}), c.wanted)
		if (err == nil && who != nil) != c.ok || !slices.Equal(shared, c.shared) {
			t.Errorf("%s: who %v, shared %v, error %v", c.name, who, shared, err)
		}
	}
	warned := &warnings{}
	if who, _, err := w.Verify(warning.WithWarningRecorder(t.Context(), warned), " x", nil); err != nil || who.GetName() != AnonymousUser ||
		len(*warned) > 0 {
		t.Errorf("a token behind a space: %v %v %q", who, err, *warned) // as in upstream
	}
	if _, _, err := w.Verify(t.Context(), "a.b", nil); err == nil || err.Error() != "invalid bearer token" {
		t.Errorf("nobody's token: %v", err)
	}
	if _, _, err := w.Verify(t.Context(), "x", nil); !errors.Is(err, ErrUnauthorized) &&
		(err == nil || err.Error() != "invalid bearer token") {
		t.Errorf("no token: %v", err)
	}
}

// TestSignaturesAreForgotten checks that the cache of tokens is bounded, and that new keys clear it.
func TestSignaturesAreForgotten(t *testing.T) {
	var s signatures
	s.init()
	parsed := 0
	get := func(token string, generation uint64) {
		t.Helper()
		if c, _, err := s.get(token, generation, func() (*claims, error) { parsed++; return &claims{}, nil }); c == nil || err != nil {
			t.Fatal(err)
		}
	}
	get("used", 0)
	for i := range 3 * maxKnown {
		get("t"+time.Duration(i).String(), 0)
		get("used", 0)
	}
	if n := len(s.young) + len(s.old); n > maxKnown || parsed != 3*maxKnown+1 {
		t.Errorf("%d are known, %d were parsed", n, parsed)
	}
	get("used", 1)
	if parsed != 3*maxKnown+2 {
		t.Error("new keys did not make it look again")
	}
	for _, generation := range []uint64{0, 0, 1, 1} { // the keys were replaced during the verification
		get("late", generation)
	}
	if parsed != 3*maxKnown+5 {
		t.Errorf("%d times a token was parsed whose keys were replaced, want 3", parsed-3*maxKnown-2)
	}
}

func FuzzToken(f *testing.F) {
	w := newWorld(f, Settings{BootstrapTokens: true}, nil)
	f.Add("Bearer "+w.issue(f, resource.TokenClaims{Audiences: []string{"other"}}), "")
	f.Add("Bearer a.b.c", "base64url.bearer.authorization.k8s.io.YQ, v4.channel.k8s.io")
	f.Add("Basic eDp5", "")
	f.Fuzz(func(t *testing.T, authorization, protocols string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"], r.Header["Sec-Websocket-Protocol"] = []string{authorization}, []string{protocols}
		r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
		if who, err := w.Authenticate(r); err == nil && who.GetName() != AnonymousUser {
			t.Fatalf("%q gave %v", authorization, who)
		}
	})
}

func BenchmarkServiceAccountToken(b *testing.B) {
	w := newWorld(b, Settings{}, nil)
	w.shelf.put("pods", "ns", "p", "pu", &corev1.Pod{})
	bearer := "Bearer " + w.issue(b, resource.TokenClaims{PodName: "p", PodUID: "pu"})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	b.ReportAllocs()
	for b.Loop() {
		r.Header["Authorization"] = []string{bearer}
		if _, err := w.Authenticate(r); err != nil {
			b.Fatal(err)
		}
	}
}
