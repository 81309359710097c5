// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package requestinfo

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
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

func TestCheck(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/watch": "unable to determine kind and namespace from url, /api/v1/watch", "/apis/apps/v1/proxy/": "unable to determine kind and namespace from url, /apis/apps/v1/proxy/",
		"/api/v1/watch/pods": "", "/api/v1": "", "/watch": "",
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
	for _, s := range []string{"/api/v1/namespaces/ns/pods/p/log?follow=1", "/apis/apps/v1/x/y/z/w", "/api//v1", "/apis///", "/api/v1/watch", "/api/v1/namespaces//pods?watch"} {
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
