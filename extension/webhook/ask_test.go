// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
)

// TestAskIsClientGo has a server answer in many ways, and compares what it was sent and what comes of its answers with a request of
// client-go.
func TestAskIsClientGo(t *testing.T) {
	const good = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"a","allowed":true,"warnings":["w"]}}`
	answer := func(code int, media, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{media}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	cases := map[string]http.HandlerFunc{
		"good":                answer(200, "application/json", good),
		"good with a charset": answer(200, "application/json; charset=utf-8", good),
		"good as text":        answer(200, "text/plain", good),
		"good as nothing":     answer(200, "", good),
		"good as nonsense":    answer(200, ";;", good),
		"created":             answer(201, "application/json", good),
		"no content":          answer(204, "application/json", ""),
		"empty":               answer(200, "application/json", ""),
		"YAML":                answer(200, "application/json", "kind: AdmissionReview\napiVersion: admission.k8s.io/v1\nresponse: {uid: a}\n"),
		"no version":          answer(200, "application/json", `{"response":{"uid":"a","allowed":true}}`),
		"another version": answer(200, "application/json",
			`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","response":{"uid":"a"}}`),
		"unknown version": answer(200, "application/json",
			`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v9","response":{"uid":"a"}}`),
		"another kind": answer(200, "application/json", `{"kind":"Pod","apiVersion":"v1"}`),
		"a status": answer(200, "application/json",
			`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":409}`),
		"wrong types": answer(200, "application/json",
			`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"allowed":7}}`),
		"cut":       answer(200, "application/json", good[:40]),
		"null":      answer(200, "application/json", "null"),
		"not found": answer(404, "text/plain", "nothing here"),
		"an error":  answer(500, "text/plain", "broken"),
		"an error as a status": answer(500, "application/json",
			`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Invalid","code":422}`),
		"an error with a good": answer(500, "application/json", good),
		"shorter than promised": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "999")
			answer(200, "application/json", good)(w, r)
		},
		"the connection closed": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"elsewhere":             func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
	}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		t.Run(name, func(t *testing.T) {
			var got []string
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				got = append(got, fmt.Sprintln(r.Proto, r.Method, r.RequestURI, r.Header, string(body), err))
				cases[name](w, r)
			}))
			server.Config.ErrorLog = nil
			server.StartTLS()
			defer server.Close()
			ask := func(how func(c *Client, ctx context.Context, into *admissionv1.AdmissionReview) error) (requests []string, said string) {
				got = nil
				into, c := &admissionv1.AdmissionReview{}, client(t, server)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := how(c, ctx, into)
				return got, fmt.Sprintf("%v %T %+v", err, err, *into)
			}
			requests, said := ask(func(c *Client, ctx context.Context, into *admissionv1.AdmissionReview) error {
				return c.ask(ctx, []byte("{}"), into)
			})
			wantRequests, want := ask(func(c *Client, ctx context.Context, into *admissionv1.AdmissionReview) error {
				return c.request([]byte("{}"), time.Hour).Do(ctx).Into(into)
			})
			if diff := cmp.Diff(wantRequests, requests); diff != "" {
				t.Errorf("what the webhook was asked (-client-go):\n%s", diff)
			}
			if diff := cmp.Diff(want, said); diff != "" {
				t.Errorf("what came of it (-client-go):\n%s", diff)
			}
		})
	}
}

// client is the way to a server, over connections of its own.
func client(t *testing.T, server *httptest.Server) *Client {
	caller, err := NewAdmission(extension.NewLedger(clock.RealClock{}), nil, "")
	if err != nil {
		t.Fatal(err)
	}
	c, err := caller.Client(Target{Name: "w", URL: server.URL + "/a?b=c",
		CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestAskOnAConnectionThatCloses has a server close a connection at its second request, as one does that ends or has no more patience with
// an idle connection: the request is made again, on a new connection. A new connection that closes is the webhook's error.
func TestAskOnAConnectionThatCloses(t *testing.T) {
	const good = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"a","allowed":true}}`
	type used struct{}
	var header http.Header
	always := false
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header = r.Header
		before := r.Context().Value(used{}).(*bool)
		if *before || always {
			panic(http.ErrAbortHandler)
		}
		*before = true
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, good)
	}))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, used{}, new(bool))
	}
	server.StartTLS()
	defer server.Close()
	c := client(t, server)
	ask := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		return c.ask(ctx, []byte("{}"), &admissionv1.AdmissionReview{})
	}
	for range 3 {
		if err := ask(); err != nil {
			t.Error(err)
		}
	}
	if _, sent := header["Idempotency-Key"]; sent {
		t.Errorf("sent: %v", header)
	}
	always = true
	if err := ask(); err == nil {
		t.Error("no error, though the webhook closes new connections")
	}
}

// TestAskComesAgain has a server that wants to be asked later: it is, as client-go does.
func TestAskComesAgain(t *testing.T) {
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked == 1 {
			w.Header().Set("Retry-After", "0")
			http.Error(w, "later", http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"a"}}`)
	}))
	defer server.Close()
	into := &admissionv1.AdmissionReview{}
	if err := client(t, server).ask(t.Context(), []byte("{}"), into); err != nil {
		t.Fatal(err)
	}
	if asked != 2 || into.Response == nil || into.Response.UID != "a" {
		t.Errorf("asked %d times, read %+v", asked, into)
	}
}

// TestAskWithoutTime is client-go's error of a request whose time was over before.
func TestAskWithoutTime(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := client(t, server).ask(ctx, []byte("{}"), &admissionv1.AdmissionReview{}); err == nil ||
		!strings.Contains(err.Error(), "context canceled") {
		t.Errorf("%v", err)
	}
}
