// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed/options"
)

// browser is a client of the console with the cookies of one user.
type browser struct {
	t       *testing.T
	client  *http.Client
	url     string
	cookies []*http.Cookie
}

// newBrowser returns a browser without a client certificate.
func newBrowser(t *testing.T, s *Server) *browser {
	t.Helper()
	client, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: s.Config().CAData}})
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t: t, client: client, url: s.URL()}
}

// ask sends a request as the page does.
func (b *browser) ask(method, path, body string) (code int, text string) {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.url+"/console/"+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	r.Header.Set("X-Mortise-Console", "1")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	r.Header.Set("Content-Type", "application/json")
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	resp, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	if c := resp.Cookies(); len(c) > 0 {
		b.cookies = c
	}
	return resp.StatusCode, string(got)
}

func (b *browser) want(code int, method, path, body string) string {
	b.t.Helper()
	got, text := b.ask(method, path, body)
	if got != code {
		b.t.Errorf("%s %s: %d %s, want %d", method, path, got, text, code)
	}
	return text
}

// reader makes a service account that may read the pods of a namespace, and returns a token of it.
func reader(t *testing.T, s *Server) string {
	t.Helper()
	ctx, client := t.Context(), s.Client()
	meta := metav1.ObjectMeta{Name: "reader", Namespace: "default"}
	_, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = client.RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = client.RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := client.CoreV1().ServiceAccounts("default").CreateToken(ctx, "reader", &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// TestConsole signs in to a server as its administrator and as an account that may read one namespace, and again after a restart.
func TestConsole(t *testing.T) {
	dir := t.TempDir()
	policy, audited := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options.APIServer{}
	o.Serving.Console.Enabled = true
	o.Audit.PolicyFile, o.Audit.Log.Path = policy, audited
	server := func() *Server {
		s := &Server{DataDir: filepath.Join(dir, "data"), Node: NodeNone, Controllers: []string{"none"}, APIServer: o}
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := server()
	stop := func() {
		if s != nil {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		}
		s = nil
	}
	defer stop()

	anonymous := newBrowser(t, s)
	if page := anonymous.want(http.StatusOK, http.MethodGet, "pods/default/web", ""); !strings.Contains(page, `<base href="/console/">`) {
		t.Errorf("the page is %s", page)
	}
	anonymous.want(http.StatusUnauthorized, http.MethodGet, "api/session", "")
	anonymous.want(http.StatusUnauthorized, http.MethodGet, "cluster/version", "")
	anonymous.want(http.StatusUnauthorized, http.MethodPost, "api/codes", "")

	administrator := newBrowser(t, s)
	own, err := rest.HTTPClientFor(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ Code string }
	text := (&browser{t: t, client: own, url: s.URL()}).want(http.StatusCreated, http.MethodPost, "api/codes", "")
	if err := json.Unmarshal([]byte(text), &made); err != nil {
		t.Fatal(err)
	}
	administrator.want(http.StatusNoContent, http.MethodPost, "api/login", `{"code":"`+made.Code+`"}`)
	anonymous.want(http.StatusUnauthorized, http.MethodPost, "api/login", `{"code":"`+made.Code+`"}`)
	if who := administrator.want(http.StatusOK, http.MethodGet, "api/session", ""); !strings.Contains(who, `"kubernetes-admin"`) {
		t.Errorf("the administrator is %s", who)
	}
	const link = `{"apiVersion":"extension.mortise.dev/v1alpha1","kind":"ConsoleExtension","metadata":{"name":"docs"},` +
		`"spec":{"links":[{"title":"Docs","url":"%s"}]}}`
	const extensions = "cluster/apis/extension.mortise.dev/v1alpha1/consoleextensions"
	administrator.want(http.StatusCreated, http.MethodPost, extensions, fmt.Sprintf(link, "https://docs.example.com/"))
	administrator.want(http.StatusUnprocessableEntity, http.MethodPost, extensions, fmt.Sprintf(link, "javascript:alert(1)"))
	v := administrator.want(http.StatusOK, http.MethodGet, "cluster/debug/extensions", "")
	if !strings.Contains(v, `"effects":{"aggregated-api"`) {
		t.Errorf("extensions are %.200s", v)
	}

	account := newBrowser(t, s)
	account.want(http.StatusNoContent, http.MethodPost, "api/login", `{"token":"`+reader(t, s)+`"}`)
	for path, want := range map[string]int{
		"cluster/api/v1/namespaces/default/pods":     http.StatusOK,
		"cluster/api/v1/namespaces/kube-system/pods": http.StatusForbidden,
		"cluster/api/v1/pods":                        http.StatusForbidden,
		"cluster/debug/extensions":                   http.StatusForbidden,
	} {
		account.want(want, http.MethodGet, path, "")
	}
	account.want(http.StatusForbidden, http.MethodDelete, "cluster/api/v1/namespaces/default/pods/web", "")
	impersonating, err := rest.HTTPClientFor(&rest.Config{
		TLSClientConfig: rest.TLSClientConfig{CAData: s.Config().CAData},
		Impersonate:     rest.ImpersonationConfig{UserName: "system:serviceaccount:default:reader"},
	})
	if err != nil {
		t.Fatal(err)
	}
	asReader := *administrator
	asReader.client = impersonating
	asReader.want(http.StatusForbidden, http.MethodGet, "cluster/api/v1/pods", "")

	stop()
	log, err := os.ReadFile(audited)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"requestURI":"/api/v1/namespaces/kube-system/pods","verb":"list","user":{"username":"system:serviceaccount:default:reader"`,
		`"requestURI":"/api/v1/pods","verb":"list","user":{"username":"kubernetes-admin"`,
	} {
		if !bytes.Contains(log, []byte(want)) {
			t.Errorf("the audit log lacks %s", want)
		}
	}
	if bytes.Contains(log, []byte("/console/")) {
		t.Error("the audit log has paths of the console")
	}

	s = server()
	for _, b := range []*browser{administrator, account} {
		b.url = s.URL()
		b.want(http.StatusOK, http.MethodGet, "api/session", "")
		b.want(http.StatusOK, http.MethodGet, "cluster/api/v1/namespaces/default/pods", "")
	}
	err = s.Client().CoreV1().ServiceAccounts("default").Delete(t.Context(), "reader", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	account.want(http.StatusUnauthorized, http.MethodGet, "api/session", "") // its token is worth nothing any more
	account.want(http.StatusUnauthorized, http.MethodGet, "cluster/api/v1/namespaces/default/pods", "")
}
