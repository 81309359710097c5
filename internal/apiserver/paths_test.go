// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

func bare(t *testing.T, checks ...health.Check) (*Server, *store.Store) {
	t.Helper()
	m, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	st := store.New(memory.Open(memory.Options{}))
	s, err := New(Options{
		Store: st, Kinds: []*resource.Descriptor{configMaps()}, Material: m, Checks: checks,
		Version: apimachineryversion.Info{Major: "1", Minor: "37", EmulationMajor: "1", EmulationMinor: "37", GitVersion: "v1.37.1+mortise.0"},
		Pages:   Pages{Flags: func() map[string]string { return map[string]string{"listen": ":6443"} }},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, st
}

// say sends a request as an administrator.
func say(s *Server, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}}))
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func TestPaths(t *testing.T) {
	s, _ := bare(t)
	const uncached, published = "no-cache, private", "public, max-age=3600"
	for _, c := range []struct {
		method, path, accept string
		code                 int
		contentType, cache   string
		contains             string
	}{
		{"GET", "/version", "", 200, "application/json", uncached, `"gitVersion": "v1.37.1+mortise.0"`},
		{"GET", "/version/", "", 200, "application/json", uncached, ""},
		{"HEAD", "/version", "", 405, "application/json", uncached, ""},
		{"POST", "/version", "", 405, "application/json", uncached, "the server does not allow this method on the requested resource"},
		{"GET", "/version/x", "", 404, "application/json", uncached, "the server could not find the requested resource"},
		{"GET", "/version", "application/yaml", 406, "application/yaml", uncached, "Available representations: application/json"},
		{"GET", "/.well-known/openid-configuration", "", 200, "application/json", published, `"jwks_uri":"https://`},
		{"GET", "/openid/v1/jwks", "", 200, "application/jwk-set+json", published, `"kty":"EC"`},
		{"GET", "/openid/v1/jwks", "application/json", 406, "application/json", uncached, "Available representations: application/jwk-set+json"},
		{"GET", "/statusz", "", 200, "text/plain; charset=utf-8", uncached,
			"Binary version: 1.37.1\nEmulation version: 1.37\nPaths: /flagz /healthz /livez /metrics /readyz /statusz /version"},
		{"GET", "/flagz", "", 200, "text/plain; charset=utf-8", uncached, "listen=:6443"},
		{"GET", "/configz", "", 200, "application/json", uncached, "{}"},
		{"GET", "/metrics", "", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", uncached,
			"apiserver_current_inflight_requests"},
		{"GET", "/metrics/slis", "", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", uncached, ""},
		{"GET", "/debug/pprof", "", 302, "text/html; charset=utf-8", uncached, ""},
		{"GET", "/debug/pprof/cmdline", "", 404, "text/plain; charset=utf-8", uncached, "Unknown profile"},
		{"GET", "/debug/flags", "", 200, "text/html; charset=utf-8", uncached, "full flags configurable"},
		{"GET", "/debug/flags/v", "", 406, "text/plain", uncached, "unsupported http method"},
		{"GET", "/nope", "", 404, "text/plain; charset=utf-8", uncached, "404 page not found"},
		{"GET", "/metrics/resources", "", 404, "text/plain; charset=utf-8", uncached, "404 page not found"},
		{"GET", "/logs", "", 404, "text/plain; charset=utf-8", uncached, "404 page not found"},
		{"GET", "/api/v1/nope", "", 404, "application/json", uncached, "the server could not find the requested resource"},
		{"GET", "/apis/nope/v1/x", "", 404, "text/plain; charset=utf-8", uncached, "404 page not found"},
		{"GET", "/apis/nope", "", 404, "text/plain; charset=utf-8", uncached, "404 page not found"},
	} {
		w := say(s, c.method, c.path, "", "Accept", c.accept)
		h := w.Header()
		if w.Code != c.code || h.Get("Content-Type") != c.contentType || h.Get("Cache-Control") != c.cache ||
			!strings.Contains(w.Body.String(), c.contains) {
			t.Errorf("%s %s (%s): %d, %s, %s\n%.300s", c.method, c.path, c.accept, w.Code, h.Get("Content-Type"), h.Get("Cache-Control"),
				w.Body.String())
		}
	}
	var index struct{ Paths []string }
	if err := json.Unmarshal(say(s, "GET", "/", "").Body.Bytes(), &index); err != nil {
		t.Fatal(err)
	}
	short := slices.DeleteFunc(index.Paths, func(p string) bool { return strings.Contains(p, "z/") || strings.HasPrefix(p, "/apis/a") })
	want := []string{"/.well-known/openid-configuration", "/api", "/api/v1", "/apis", "/apis/", "/flagz", "/healthz", "/livez", "/metrics",
		"/metrics/slis", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/openid/v1/jwks", "/readyz", "/statusz", "/version"}
	if diff := cmp.Diff(want, short); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
	if w := say(s, "PUT", "/debug/flags/v", "0"); w.Code != 200 || w.Body.String() != "successfully set klog.logging.verbosity to 0\n" {
		t.Errorf("set verbosity: %d %s", w.Code, w.Body.String())
	}
	if w := say(s, "PUT", "/debug/flags/v", "-1"); w.Code != 400 || w.Body.String() != "strconv.ParseUint: parsing \"-1\": invalid syntax\n" {
		t.Errorf("set a bad verbosity: %d %s", w.Code, w.Body.String())
	}
}

// TestHealthOfTheStore checks that health fails when the store cannot be written, and that only the paths below the
// roots show the reason.
func TestHealthOfTheStore(t *testing.T) {
	s, st := bare(t)
	if w := say(s, "GET", "/livez/etcd", ""); w.Code != http.StatusOK {
		t.Errorf("before: %d %s", w.Code, w.Body.String())
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		w := say(s, "GET", path, "")
		if w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "[-]etcd failed: reason withheld\n") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body.String())
		}
	}
	if w := say(s, "GET", "/readyz/etcd", ""); w.Body.String() != "internal server error: commit to store: "+store.ErrClosed.Error()+"\n" {
		t.Errorf("etcd: %s", w.Body.String())
	}
	if w := say(s, "GET", "/livez?exclude=etcd", ""); w.Code != http.StatusOK {
		t.Errorf("without the store: %d", w.Code)
	}
}

// TestWhatIsCounted checks that requests that a kind's verb answered, and a few paths, are counted under upstream's
// labels.
func TestWhatIsCounted(t *testing.T) {
	s, _ := bare(t)
	const base = "/api/v1/namespaces/default/configmaps"
	object := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`
	for _, c := range [][4]string{
		{"POST", base, object, "application/json"},
		{"POST", base + "?dryRun=All", strings.Replace(object, `"a"`, `"b"`, 1), "application/json"},
		{"GET", base, "", ""},
		{"GET", "/api/v1/configmaps", "", ""},
		{"GET", base + "/a", "", ""},
		{"GET", base + "/made-up-by-the-client", "", ""},
		{"GET", base + "/a?watch=1", "", ""}, // a plain read, which upstream counts like this
		{"GET", base + "?watch=1&timeoutSeconds=1&resourceVersion=1000&fieldSelector=metadata.name%3Da&limit=x", "", ""},
		{"PATCH", base + "/a", `{}`, "application/merge-patch+json"},
		{"PATCH", base + "/a?fieldManager=x", object, "application/apply-patch+yaml"},
		{"DELETE", base + "/a", "", ""},
		{"DELETE", base, "", ""},
		{"PUT", base, "{}", "application/json"}, // not a supported verb
		{"GET", "/api/v1/namespaces/default/made-up", "", ""},
		{"GET", "/api/v1/namespaces/default/configmaps/a/made-up", "", ""},
		{"GET", "/version", "", ""},
		{"GET", "/livez", "", ""},
		{"GET", "/openapi/v3", "", ""},
		{"GET", "/flagz", "", ""},
	} {
		say(s, c[0], c[1], c[2], "Content-Type", c[3])
	}
	var got []string
	for line := range strings.Lines(say(s, "GET", "/metrics", "").Body.String()) {
		if l, ok := strings.CutPrefix(line, "apiserver_request_total{"); ok {
			got = append(got, strings.TrimSpace(strings.NewReplacer(`component="apiserver",`, "", `group="",`, "", `"`, "", "}", "").Replace(l)))
		}
	}
	want := []string{
		"code=200,component=,dry_run=,resource=,scope=,subresource=/livez,verb=GET,version= 1",
		"code=200,component=,dry_run=,resource=,scope=,subresource=openapi/v3,verb=GET,version= 1",
		"code=200,dry_run=,resource=configmaps,scope=cluster,subresource=,verb=LIST,version=v1 1",
		"code=200,dry_run=,resource=configmaps,scope=namespace,subresource=,verb=DELETE,version=v1 1",
		"code=200,dry_run=,resource=configmaps,scope=namespace,subresource=,verb=LIST,version=v1 1",
		"code=200,dry_run=,resource=configmaps,scope=resource,subresource=,verb=APPLY,version=v1 1",
		"code=200,dry_run=,resource=configmaps,scope=resource,subresource=,verb=DELETE,version=v1 1",
		"code=200,dry_run=,resource=configmaps,scope=resource,subresource=,verb=GET,version=v1 1",
		"code=200,dry_run=,resource=configmaps,scope=resource,subresource=,verb=PATCH,version=v1 1",
		"code=200,dry_run=,resource=configmaps,scope=resource,subresource=,verb=WATCH,version=v1 1",
		"code=200,dry_run=,resource=flagz,scope=,subresource=,verb=GET,version= 1",
		"code=201,dry_run=,resource=configmaps,scope=resource,subresource=,verb=POST,version=v1 1",
		"code=201,dry_run=All,resource=configmaps,scope=resource,subresource=,verb=POST,version=v1 1",
		"code=400,dry_run=,resource=configmaps,scope=namespace,subresource=,verb=WATCH,version=v1 1",
		"code=404,dry_run=,resource=configmaps,scope=resource,subresource=,verb=GET,version=v1 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// TestRefusedHaveAnIdentity checks that a response that rejects authentication has an audit ID too.
func TestRefusedHaveAnIdentity(t *testing.T) {
	s, _ := bare(t)
	r := httptest.NewRequest("GET", "/version", nil)
	r.Header.Set("Authorization", "Bearer wrong")
	r.Header.Set("Audit-ID", "mine")
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized || w.Header().Get("Audit-ID") != "mine" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
