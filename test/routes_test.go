// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	requestinfo "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// upstreamRoutes are the resource routes of kube-apiserver 1.37.1: the methods of each path of the OpenAPI document in the
// k8s.io/kubernetes module. Parameters are written {}, and {...} where the last one takes all that follows.
type upstreamRoutes struct {
	methods      map[string][]string         // by path
	resources    map[string]sets.Set[string] // by /api/v1 or /apis/GROUP/VERSION
	subresources map[string]sets.Set[string] // the same
}

func readUpstreamRoutes(t *testing.T) upstreamRoutes {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "api/openapi-spec/swagger.json"))
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	all := upstreamRoutes{methods: map[string][]string{}, resources: map[string]sets.Set[string]{},
		subresources: map[string]sets.Set[string]{}}
	for path, operations := range document.Paths {
		parts := strings.Split(strings.Trim(path, "/"), "/")
		root := 2
		if parts[0] == "apis" {
			root = 3
		}
		if parts[0] != "api" && parts[0] != "apis" || len(parts) <= root {
			continue
		}
		for i, p := range parts {
			if p == "{path}" {
				parts[i] = "{...}"
			} else if strings.HasPrefix(p, "{") {
				parts[i] = "{}"
			}
		}
		var methods []string
		for method := range operations {
			if method != "parameters" {
				methods = append(methods, strings.ToUpper(method))
			}
		}
		all.methods["/"+strings.Join(parts, "/")] = methods
		prefix, rest := "/"+strings.Join(parts[:root], "/"), parts[root:]
		if rest[0] == "watch" {
			continue
		}
		if len(rest) > 2 && rest[0] == "namespaces" && (len(rest) > 3 || rest[2] != "status" && rest[2] != "finalize") {
			rest = rest[2:]
		}
		if all.resources[prefix] == nil {
			all.resources[prefix], all.subresources[prefix] = sets.New("nothings"), sets.New("status", "scale", "proxy", "nothing")
		}
		all.resources[prefix].Insert(rest[0])
		if len(rest) > 2 {
			all.subresources[prefix].Insert(rest[2])
		}
	}
	return all
}

// match returns the methods of the route that takes a path, and whether there is one.
func (u upstreamRoutes) match(path string) ([]string, bool) {
	candidates := []string{""}
	for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
		var next []string
		for _, c := range candidates {
			if strings.HasSuffix(c, "{...}") {
				next = append(next, c)
				continue
			}
			next = append(next, c+"/"+part, c+"/{}", c+"/{...}")
		}
		candidates = next
	}
	for _, c := range candidates { // literals stand before parameters
		if methods, ok := u.methods[c]; ok {
			return methods, true
		}
	}
	return nil, false
}

// TestRoutesAreUpstreams sends the whole product of group versions, prefixes, namespaces, resources, names, subresources and
// methods. What a user without roles is refused must be worded as kube-apiserver words it, whose own packages make the wanted
// message: so a request is authorized as what it does. For an administrator every route of kube-apiserver is there, and no other.
func TestRoutesAreUpstreams(t *testing.T) {
	if testing.Short() {
		t.Skip("more than 60,000 requests")
	}
	routes := readUpstreamRoutes(t)
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	config := s.Config()
	config.QPS = -1
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	_, served, err := s.Client().Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	type probe struct {
		path    string
		methods []string
	}
	all, some := []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, []string{"GET", "POST"}
	var probes []probe
	for _, list := range served {
		root := "/apis/" + list.GroupVersion
		if list.GroupVersion == "v1" {
			root = "/api/v1"
		}
		for prefix, methods := range map[string][]string{"": all, "/watch": all, "/proxy": some} {
			for _, namespace := range []string{"", "/namespaces/none"} {
				for resource := range routes.resources[root] {
					of := root + prefix + namespace + "/" + resource
					probes = append(probes, probe{of, methods}, probe{of + "/none", methods})
					for sub := range routes.subresources[root] {
						probes = append(probes, probe{of + "/none/" + sub, methods}, probe{of + "/none/" + sub + "/more", some})
					}
				}
			}
		}
	}
	next := make(chan probe)
	var workers sync.WaitGroup
	p := &routeProbe{client: client, url: s.URL(), routes: routes}
	for range 4 {
		workers.Go(func() {
			for n := range next {
				for _, method := range n.methods {
					p.probe(t, method, n.path)
				}
			}
		})
	}
	for _, n := range probes {
		next <- n
	}
	close(next)
	workers.Wait()
	t.Logf("%d paths: %d refusals, %d routes, %d that are none", len(probes), p.refused.Load(), p.found.Load(), p.missing.Load())
	if p.found.Load() < 700 || p.refused.Load() < 30_000 {
		t.Errorf("%d routes and %d refusals: the product is not what it was", p.found.Load(), p.refused.Load())
	}
}

type routeProbe struct {
	client *http.Client
	url    string
	routes upstreamRoutes

	refused, found, missing, wrong atomic.Int64
}

var upstreamRequestInfo = &requestinfo.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
	GrouplessAPIPrefixes: sets.NewString("api")}

func (p *routeProbe) probe(t *testing.T, method, path string) {
	t.Helper()
	fail := func(format string, args ...any) {
		if p.wrong.Add(1) < 50 {
			t.Errorf(method+" "+path+": "+format, args...)
		}
	}
	code, said, err := p.send(t, method, path, "nobody")
	if err != nil {
		fail("%v", err)
		return
	}
	info, err := upstreamRequestInfo.NewRequestInfo(&http.Request{Method: method, URL: &url.URL{Path: path}})
	if err != nil {
		fail("upstream: %v", err)
		return
	}
	want := responsewriters.ForbiddenStatusError(authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "nobody"}, Verb: info.Verb, Namespace: info.Namespace, APIGroup: info.APIGroup, APIVersion: info.APIVersion,
		Resource: info.Resource, Subresource: info.Subresource, Name: info.Name, ResourceRequest: info.IsResourceRequest, Path: info.Path,
	}, "").Status()
	switch {
	case info.Verb == "create" && strings.HasPrefix(info.Resource, "selfsubject"): // system:basic-user allows these
	case code != http.StatusForbidden:
		fail("a user without roles is answered %d, want 403", code)
	case method != "HEAD" && said.Message != want.Message:
		fail("refused with %q, want %q", said.Message, want.Message)
	default:
		p.refused.Add(1)
	}

	code, said, err = p.send(t, method, path, "")
	if err != nil {
		fail("%v", err)
		return
	}
	methods, there := p.routes.match(path)
	got := "route"
	if code == http.StatusMethodNotAllowed {
		got = "405"
	} else if code == http.StatusNotFound && (said.Details == nil || said.Details.Name == "" && said.Details.Kind == "") {
		got = "404"
	}
	expected := "404"
	switch {
	case slices.Contains(methods, method):
		expected = "route"
		p.found.Add(1)
	case there:
		expected = "405"
		p.missing.Add(1)
	default:
		p.missing.Add(1)
	}
	if got != expected && (method != "HEAD" || got == "405" || expected == "405") { // an answer to HEAD has no body that says what is missing
		fail("the administrator is answered %d %s %+v, want %s", code, said.Message, said.Details, expected)
	}
}

// send makes a request that can change nothing: its body is no JSON, its revision is no number, and its objects do not exist.
func (p *routeProbe) send(t *testing.T, method, path, as string) (int, metav1.Status, error) {
	var status metav1.Status
	var body io.Reader
	if method != "GET" && method != "HEAD" {
		body = strings.NewReader("{")
	}
	r, err := http.NewRequestWithContext(t.Context(), method, p.url+path+"?resourceVersion=none&timeoutSeconds=1", body)
	if err != nil {
		return 0, status, err
	}
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	} else if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if as != "" {
		r.Header.Set("Impersonate-User", as)
	}
	response, err := p.client.Do(r)
	if err != nil {
		return 0, status, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return 0, status, err
	}
	if json.Unmarshal(data, &status) != nil {
		status = metav1.Status{Message: string(data)}
	}
	return response.StatusCode, status, nil
}
