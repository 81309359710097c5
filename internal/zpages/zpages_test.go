// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package zpages

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestForms(t *testing.T) {
	start := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	c := &Component{
		Name: "apiserver", Started: start, GoVersion: "go1.26", BinaryVersion: "1.37.1", EmulationVersion: "1.37",
		Paths: func() []string {
			return []string{"/version", "/livez/ping", "/livez", "/apis/apps", "/flagz", "/configz"}
		},
		Flags:  func() map[string]string { return map[string]string{"store": "local", "listen": ":1"} },
		Config: func() map[string]any { return map[string]any{"mortise": map[string]any{"store": "local"}} },
		Now:    func() time.Time { return start.Add(3725 * time.Second) },
	}
	const warning = "\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n"
	const refused = `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"only the following media types are accepted: application/json, application/yaml, text/plain","reason":"NotAcceptable","code":406}` + "\n"
	for _, x := range []struct {
		serve        http.HandlerFunc
		accept       string
		contentType  string
		deprecated   bool
		body         string
		notAccepting bool
	}{
		{serve: c.Statusz, contentType: "text/plain; charset=utf-8", body: "\napiserver statusz" + warning +
			"\nStarted: Fri Nov 20 10:00:00 UTC 2026\nUp: 1 hr 02 min 05 sec\nGo version: go1.26\nBinary version: 1.37.1\nEmulation version: 1.37\nPaths: /configz /flagz /livez /version\n"},
		{serve: c.Flagz, accept: "*/*", contentType: "text/plain; charset=utf-8",
			body: "\napiserver flagz" + warning + "listen=:1\nstore=local\n"},
		{serve: c.Statusz, accept: "application/json;g=config.k8s.io;v=v1beta1;as=Statusz",
			contentType: "application/json;g=config.k8s.io;v=v1beta1;as=Statusz",
			body: `{"kind":"Statusz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"apiserver"},"startTime":"2026-11-20T10:00:00Z","uptimeSeconds":3725,` +
				`"goVersion":"go1.26","binaryVersion":"1.37.1","emulationVersion":"1.37","paths":["/configz","/flagz","/livez","/version"]}` + "\n"},
		{serve: c.Flagz, accept: "text/html,application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz",
			contentType: "application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz",
			deprecated:  true, body: "apiVersion: config.k8s.io/v1alpha1\nflags:\n  listen: :1\n  store: local\nkind: Flagz\nmetadata:\n  name: apiserver\n"},
		{serve: c.Flagz, accept: "application/json", contentType: "application/json", notAccepting: true, body: refused},
		{serve: c.Flagz, accept: "application/json;g=config.k8s.io;v=v1beta1;as=Statusz,application/json", contentType: "application/json",
			notAccepting: true, body: refused},
		{serve: c.Configz, contentType: "application/json", body: `{"mortise":{"store":"local"}}`},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept", x.accept)
		w := httptest.NewRecorder()
		x.serve(w, r)
		code := http.StatusOK
		if x.notAccepting {
			code = http.StatusNotAcceptable
		}
		if w.Code != code || w.Header().Get("Content-Type") != x.contentType || (w.Header().Get("Warning") != "") != x.deprecated {
			t.Errorf("%s: %d, %v", x.accept, w.Code, w.Header())
		}
		if diff := cmp.Diff(x.body, w.Body.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", x.accept, diff)
		}
	}
}

func FuzzForm(f *testing.F) {
	f.Add("application/json;g=config.k8s.io;v=v1beta1;as=Flagz")
	f.Add("text/plain;q=0.1, */*")
	f.Fuzz(func(t *testing.T, accept string) {
		media, version, ok := form(accept, "Flagz")
		if ok != (media != "") || (media == text) != (ok && version == "") {
			t.Errorf("%q: %q %q %v", accept, media, version, ok)
		}
	})
}
