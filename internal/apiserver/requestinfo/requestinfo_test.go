// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package requestinfo

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		method, url string
		want        string // verb prefix group version namespace resource subresource name
	}{
		{"GET", "/api/v1/namespaces/ns/pods/p/log", "get api  v1 ns pods log p"},
		{"GET", "/api/v1/pods", "list api  v1  pods  "},
		{"GET", "/api/v1/pods?watch=1", "watch api  v1  pods  "},
		{"GET", "/api/v1/pods?watch=false", "list api  v1  pods  "},
		{"GET", "/api/v1/namespaces/ns/pods?fieldSelector=metadata.name%3Dp", "list api  v1 ns pods  p"},
		{"GET", "/api/v1/namespaces/ns", "get api  v1 ns namespaces  ns"},
		{"PUT", "/api/v1/namespaces/ns/finalize", "update api  v1 ns namespaces finalize ns"},
		{"POST", "/apis/apps/v1/namespaces/ns/deployments", "create apis apps v1 ns deployments  "},
		{"PATCH", "/apis/apps/v1/namespaces/ns/deployments/d/status", "patch apis apps v1 ns deployments status d"},
		{"DELETE", "/apis/apps/v1/namespaces/ns/deployments", "deletecollection apis apps v1 ns deployments  "},
		{"DELETE", "/api/v1/nodes/n", "delete api  v1  nodes  n"},
		{"GET", "/api/v1/watch/namespaces/ns/pods", "watch api  v1 ns pods  "},
		{"POST", "/api/v1/watch/namespaces/ns/pods", "watch api  v1 ns pods  "},
		{"GET", "/api/v1/namespaces/ns/pods/p?watch=1", "get api  v1 ns pods  p"},
		{"GET", "/api/v1/proxy/nodes/n/x", "proxy api  v1  nodes  n"},
		{"GET", "/apis/apps", "get apis apps     "},
		{"GET", "/apis/apps/v1", "get apis apps v1    "},
		{"GET", "/healthz", "get       "},
		{"POST", "/version", "post       "},
	} {
		i := Parse(httptest.NewRequest(c.method, c.url, nil))
		got := strings.Join([]string{i.Verb, i.APIPrefix, i.APIGroup, i.APIVersion, i.Namespace, i.Resource, i.Subresource, i.Name}, " ")
		if got != c.want {
			t.Errorf("%s %s:\n got %q\nwant %q", c.method, c.url, got, c.want)
		}
	}
}

// TestParseIsUpstreams asks kube-apiserver's own parser about the product of prefixes, places, names, subresources, methods and queries.
func TestParseIsUpstreams(t *testing.T) {
	theirs := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	klog.SetLogger(logr.Discard()) // upstream logs each query that it cannot read
	t.Cleanup(klog.ClearLogger)
	n := 0
	for _, root := range []string{"/api/v1", "/apis/apps/v1", "//api/v1", "/apis//v1", "/api/", "/healthz"} {
		for _, prefix := range []string{"", "/watch", "/proxy", "/watch/watch", "/Watch"} {
			for _, place := range []string{"", "/namespaces", "/namespaces/ns", "/namespaces/ns/pods", "/pods", "/nodes", "/namespaces//pods",
				"/namespaces/ns/status", "/namespaces/ns/watch"} {
				for _, below := range []string{"", "/", "/x", "/x/status", "/x/proxy/a/b", "//log", "/x//log", "/status", "/finalize", "/x/"} {
					for _, query := range []string{"", "watch=1", "watch=False", "watch=", "watch", "fieldSelector=metadata.name%3Dn&watch=true",
						"fieldSelector=metadata.name%3D..",
						"fieldSelector=metadata.name%3Dn&limit=many", "fieldSelector=metadata.name%3D", "fieldSelector=a!!&watch=0&limit=x",
						"fieldSelector=&fieldSelector=metadata.name%3Dn&labelSelector=a%3Db"} {
						for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", "WATCH"} {
							u := &url.URL{Path: root + prefix + place + below, RawQuery: query}
							r := &http.Request{Method: method, URL: u}
							want, wantErr := theirs.NewRequestInfo(r)
							got := Parse(r)
							if err := Check(got, u); (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
								t.Fatalf("%s %s: error %v, want %v", method, u, err, wantErr)
							}
							if !got.IsResourceRequest { // these values do not matter
								got.APIPrefix, got.APIGroup, got.APIVersion = want.APIPrefix, want.APIGroup, want.APIVersion
							}
							if !reflect.DeepEqual(want, got) {
								t.Fatalf("%s %s:\n got %+v\nwant %+v", method, u, got, want)
							}
							n++
						}
					}
				}
			}
		}
	}
	t.Logf("%d requests", n)
}

func TestCheck(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/watch":        "unable to determine kind and namespace from url, /api/v1/watch",
		"/apis/apps/v1/proxy/": "unable to determine kind and namespace from url, /apis/apps/v1/proxy/",
		"/api/v1/watch/pods":   "", "/api/v1": "", "/watch": "",
	} {
		r := httptest.NewRequest("GET", path, nil)
		got := ""
		if err := Check(Parse(r), r.URL); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"/api/v1/namespaces/ns/pods/p/log?follow=1", "/apis/apps/v1/x/y/z/w", "/api//v1", "/apis///", "/api/v1/watch",
		"/api/v1/namespaces//pods?watch"} {
		f.Add("GET", s)
	}
	f.Fuzz(func(t *testing.T, method, raw string) {
		u, err := url.ParseRequestURI(raw)
		if err != nil {
			return
		}
		i := Parse(&http.Request{Method: method, URL: u})
		if i.IsResourceRequest && Check(i, u) == nil && (i.Resource == "" && len(i.Parts) == 0 || i.APIPrefix == "") {
			t.Errorf("%q: a resource request without a resource: %+v", raw, i)
		}
		if !i.IsResourceRequest && i.Resource != "" {
			t.Errorf("%q: a resource %q in what is no resource request", raw, i.Resource)
		}
	})
}
