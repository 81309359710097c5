// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension/egress"
)

// TestRedirectsLeadNowhere has a server send a client with a token to another, by each code there is: only what stays on the server
// is followed.
func TestRedirectsLeadNowhere(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		t.Errorf("the other server is sent %s %s %v %q %v", r.Method, r.URL, r.Header, body, err)
	}))
	defer other.Close()
	for _, code := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			var shown []string
			mux := http.NewServeMux()
			first := httptest.NewServer(mux)
			defer first.Close()
			mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+"/metadata", code) })
			mux.HandleFunc("/near", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/here", code) })
			mux.HandleFunc("/far", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/away", code) })
			rounds := 0
			mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) {
				rounds++
				http.Redirect(w, r, "/round", code)
			})
			mux.HandleFunc("/tls", func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, strings.Replace(first.URL, "http:", "https:", 1)+"/here", code)
			})
			mux.HandleFunc("/here", func(_ http.ResponseWriter, r *http.Request) { shown = append(shown, r.Header.Get("Authorization")) })
			config := &rest.Config{Host: first.URL, BearerToken: "secret"}
			config.Wrap(egress.SameOrigin)
			client, err := rest.HTTPClientFor(config)
			if err != nil {
				t.Fatal(err)
			}
			plain := egress.SameOriginClient(&http.Client{})
			if resp, err := plain.Post(first.URL+"/far", "text/plain", strings.NewReader("told")); err == nil {
				resp.Body.Close()
				t.Error("the client follows to another server")
			}
			if resp, err := plain.Get(first.URL + "/round"); err == nil || !strings.Contains(err.Error(), "stopped after 10 redirects") ||
				rounds != 10 {
				t.Errorf("the client goes round %d times: %v, %v", rounds, resp, err)
			}
			for _, path := range []string{"/away", "/far", "/tls"} {
				resp, err := client.Post(first.URL+path, "text/plain", strings.NewReader("told"))
				if err == nil {
					resp.Body.Close()
				}
				if err == nil || !strings.Contains(err.Error(), "is not followed: it is another server") {
					t.Errorf("%s: %v", path, err)
				}
			}
			resp, err := client.Post(first.URL+"/near", "text/plain", strings.NewReader("told"))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if len(shown) != 1 || shown[0] != "Bearer secret" {
				t.Errorf("on the same server %q is shown", shown)
			}
		})
	}
}

// Client-go looks for transports inside of others, to close idle connections and to name the dialer that it uses.
func TestWrappedTransport(t *testing.T) {
	inner := &http.Transport{}
	outer, ok := egress.SameOrigin(inner).(net.RoundTripperWrapper)
	if !ok || outer.WrappedRoundTripper() != inner {
		t.Errorf("%T does not have its transport inside", outer)
	}
}
