// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/options"
)

// TestAuthenticationIsChecked has settings that a server does not start with. Nothing is written before they are refused.
func TestAuthenticationIsChecked(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("bad"), 0o600); err != nil {
		t.Fatal(err)
	}
	no := false
	for name, c := range map[string]struct {
		o     options.Authentication
		error string
	}{
		"client CA": {options.Authentication{ClientCAFile: bad}, "--client-ca-file: " + bad},
		"front-proxy CA": {options.Authentication{RequestHeader: options.RequestHeader{ClientCAFile: bad}},
			"--requestheader-client-ca-file: " + bad},
		"empty header": {options.Authentication{RequestHeader: options.RequestHeader{UsernameHeaders: []string{" "}}},
			`empty value in "requestheader-username-headers"`},
		"another uid header": {options.Authentication{RequestHeader: options.RequestHeader{UIDHeaders: []string{"X-Id"}}},
			"API aggregation will not work"},
		"token file":         {options.Authentication{TokenFile: bad}, "--token-auth-file"},
		"configuration":      {options.Authentication{ConfigFile: bad}, bad},
		"no configuration":   {options.Authentication{ConfigFile: bad + "-none"}, "no such file"},
		"two configurations": {options.Authentication{ConfigFile: bad, OIDC: options.OIDC{IssuerURL: "https://x"}}, "mutually exclusive"},
		"issuer without id":  {options.Authentication{OIDC: options.OIDC{IssuerURL: "https://x"}}, "must be specified together"},
		"plain issuer":       {options.Authentication{OIDC: options.OIDC{IssuerURL: "http://x", ClientID: "y"}}, "URL scheme must be https"},
		"issuer's CA": {options.Authentication{OIDC: options.OIDC{IssuerURL: "https://x", ClientID: "y", CAFile: bad + "-none"}},
			"--oidc-ca-file"},
		"algorithm": {options.Authentication{OIDC: options.OIDC{IssuerURL: "https://x", ClientID: "y", SigningAlgs: []string{"none"}}},
			`unsupported signing alg: "none"`},
		"our issuer": {options.Authentication{OIDC: options.OIDC{IssuerURL: "https://kubernetes.default.svc.cluster.local",
			ClientID: "y"}}, "disallowed"},
		"issuer twice": {options.Authentication{ServiceAccounts: options.ServiceAccounts{Issuers: []string{"a", "a"}}},
			"already specified"},
		"keys' address": {options.Authentication{ServiceAccounts: options.ServiceAccounts{JWKSURI: "http://x"}}, "requires https scheme"},
		"key":           {options.Authentication{ServiceAccounts: options.ServiceAccounts{KeyFiles: []string{bad}}}, bad},
		"signing key":   {options.Authentication{ServiceAccounts: options.ServiceAccounts{SigningKeyFile: bad}}, bad},
		"key and signer": {options.Authentication{ServiceAccounts: options.ServiceAccounts{KeyFiles: []string{bad}, SigningEndpoint: bad}},
			"mutually exclusive"},
		"webhook": {options.Authentication{TokenWebhook: options.TokenWebhook{ConfigFile: bad}}, bad},
		"webhook's version": {options.Authentication{TokenWebhook: options.TokenWebhook{ConfigFile: bad, Version: "v2"}},
			`unsupported authentication webhook version "v2"`},
		"anonymity said twice": {options.Authentication{ConfigFile: write(t, dir,
			`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthenticationConfiguration","anonymous":{"enabled":true}}`), Anonymous: &no},
			"--anonymous-auth flag cannot be set"},
	} {
		data := filepath.Join(dir, "data")
		s := &Server{DataDir: data, APIServer: options.APIServer{Authentication: c.o}}
		err := s.Start(t.Context())
		if err == nil {
			_ = s.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), c.error) {
			t.Errorf("%s: %v, want %s", name, err, c.error)
		}
		if _, err := os.Stat(data); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s: the data directory was made", name)
		}
	}
}

func write(t *testing.T, dir, text string) string {
	t.Helper()
	f, err := os.CreateTemp(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestServiceAccountKeys starts a cluster that signs with a key of a file, and another that signs with the next one.
func TestServiceAccountKeys(t *testing.T) {
	dir := t.TempDir()
	key := func() string {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.MarshalECPrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		return write(t, dir, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	}
	one, two, tokens := key(), key(), write(t, dir, "secret,jane,7,\"dev,ops\"\n")
	no := false
	start := func(a options.ServiceAccounts) *Server {
		t.Helper()
		s := &Server{DataDir: filepath.Join(dir, "data"), Controllers: []string{"none"},
			APIServer: options.APIServer{Authentication: options.Authentication{ServiceAccounts: a, TokenFile: tokens, Anonymous: &no}}}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Stop() })
		return s
	}
	who := func(s *Server, token string) string {
		t.Helper()
		c := rest.AnonymousClientConfig(s.Config())
		c.BearerToken = token
		r, err := kubernetes.NewForConfigOrDie(c).AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return err.Error()
		}
		return r.Status.UserInfo.Username
	}
	s := start(options.ServiceAccounts{SigningKeyFile: one, Issuers: []string{"https://one.example"}})
	if _, err := s.Client().CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	issued, err := s.Client().CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"https://one.example",
			"https://two.example"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := who(s, issued.Status.Token); got != "system:serviceaccount:default:default" {
		t.Errorf("with the first key: %s", got)
	}
	if got := who(s, "secret"); got != "jane" {
		t.Errorf("a token of the file: %s", got)
	}
	if got := who(s, ""); !strings.Contains(got, "Unauthorized") && !strings.Contains(got, "provide credentials") {
		t.Errorf("nobody may be anonymous: %s", got)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	s = start(options.ServiceAccounts{SigningKeyFile: two, KeyFiles: []string{one},
		Issuers: []string{"https://two.example", "https://one.example"}})
	if got := who(s, issued.Status.Token); got != "system:serviceaccount:default:default" {
		t.Errorf("the old token with the second key: %s", got)
	}
	set, err := s.Client().CoreV1().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
	if err != nil || strings.Count(string(set), `"kid"`) != 2 {
		t.Errorf("keys: %s, %v", set, err)
	}
}
