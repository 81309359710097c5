// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"
)

func withPaths(paths map[string]*Service) *Aggregator {
	a := New(Options{})
	a.paths.Store(&paths)
	return a
}

// A path belongs to another server if its group-version does; the legacy group includes all of /api.
func TestFind(t *testing.T) {
	x, legacy := &Service{Name: "v1.x.io"}, &Service{Name: "v1."}
	one := withPaths(map[string]*Service{"x.io/v1": x})
	both := withPaths(map[string]*Service{"x.io/v1": x, "": legacy})
	for _, c := range []struct {
		of   *Aggregator
		path string
		want *Service
	}{
		{one, "/apis/x.io/v1", x}, {one, "/apis/x.io/v1/", x}, {one, "/apis/x.io/v1/things", x},
		{one, "/apis/x.io/v1/namespaces/a/things/b/log", x},
		{one, "/apis/x.io/v10/things", nil}, {one, "/apis/x.io/v2", nil}, {one, "/apis/x.io", nil}, {one, "/apis/x.io/", nil},
		{one, "/apis/", nil},
		{one, "/apis", nil}, {one, "/apis//x.io/v1", nil}, {one, "//apis/x.io/v1", nil}, {one, "/x.io/v1", nil},
		{one, "/api/v1/pods", nil}, {both, "/api", legacy}, {both, "/api/", legacy}, {both, "/api/v1/pods", legacy}, {both, "/apix", nil},
		{both, "/apis/", nil},
		{New(Options{}), "/apis/x.io/v1", nil},
	} {
		if got := c.of.Find(c.path); got != c.want {
			t.Errorf("Find(%q) = %v, want %v", c.path, got, c.want)
		}
	}
}

func FuzzFind(f *testing.F) {
	x := &Service{}
	a := withPaths(map[string]*Service{"x.io/v1": x})
	f.Add("/apis/x.io/v1/things")
	f.Fuzz(func(t *testing.T, path string) {
		ours := path == "/apis/x.io/v1" || strings.HasPrefix(path, "/apis/x.io/v1/")
		if (a.Find(path) == x) != ours {
			t.Errorf("Find(%q) takes it wrongly", path)
		}
	})
}

// Find makes no allocation for requests of this server's own groups.
func TestFindCostsNothing(t *testing.T) {
	a := withPaths(map[string]*Service{"x.io/v1": {}})
	if n := testing.AllocsPerRun(100, func() { a.Find("/apis/apps/v1/namespaces/default/deployments") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Discovery has five seconds, short requests have the configured time, long-running ones have no deadline.
func TestBound(t *testing.T) {
	a := New(Options{RequestTimeout: time.Hour})
	s := &Service{aggregator: a}
	for _, c := range []struct {
		name    string
		info    request.RequestInfo
		lasting bool
		want    time.Duration
	}{
		{"discovery", request.RequestInfo{Path: "/apis/x.io/v1"}, false, 5 * time.Second},
		{"discovery with a slash", request.RequestInfo{Path: "/apis/x.io/v1/"}, false, 5 * time.Second},
		{"a list", request.RequestInfo{Path: "/apis/x.io/v1/things", IsResourceRequest: true}, false, time.Hour},
		{"a path below", request.RequestInfo{Path: "/apis/x.io/v1/a/b"}, false, time.Hour},
		{"a watch", request.RequestInfo{Path: "/apis/x.io/v1/things", IsResourceRequest: true, Verb: "watch"}, true, 0},
	} {
		r := httptest.NewRequest(http.MethodGet, c.info.Path, nil)
		ctx, cancel := s.bound(r.WithContext(request.WithRequestInfo(r.Context(), &c.info)), c.lasting)
		at, ok := ctx.Deadline()
		cancel()
		if left := time.Until(at).Round(time.Second); ok != (c.want > 0) || ok && left != c.want {
			t.Errorf("%s: %v (%v), want %v", c.name, left, ok, c.want)
		}
	}
}

// The headers name the user, escaped, and none of the users that the client named.
func TestIdentify(t *testing.T) {
	h := http.Header{}
	for _, k := range []string{"X-Remote-User", "X-Remote-Uid", "X-Remote-Group", "X-Remote-Extra-Foo"} {
		h[k] = []string{"evil"}
	}
	h.Set("X-Custom", "stays")
	identify(h, &user.DefaultInfo{Name: "jane", Groups: []string{"a", "b"}, Extra: map[string][]string{"example.com/scopes": {"x", "y"}}})
	want := http.Header{
		"X-Remote-User": {"jane"}, "X-Remote-Group": {"a", "b"}, "X-Remote-Extra-Example.com%2fscopes": {"x", "y"}, "X-Custom": {"stays"},
	}
	if d := cmp.Diff(want, h); d != "" {
		t.Error(d)
	}
}

// Calls go to the ready endpoints of the service's first family, or of another if there are none.
func TestReady(t *testing.T) {
	slice := func(family discoveryv1.AddressType, port string, ready bool, address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			AddressType: family, Ports: []discoveryv1.EndpointPort{{Name: &port, Port: ptr.To[int32](8443)}, {Port: ptr.To[int32](1)},
				{Name: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}, {}},
		}
	}
	four, six := discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	for _, c := range []struct {
		name   string
		slices []*discoveryv1.EndpointSlice
		want   []string
	}{
		{"none", nil, nil},
		{"one", []*discoveryv1.EndpointSlice{slice(four, "https", true, "10.0.0.1")}, []string{"10.0.0.1:8443"}},
		{"not ready", []*discoveryv1.EndpointSlice{slice(four, "https", false, "10.0.0.1")}, nil},
		{"another port", []*discoveryv1.EndpointSlice{slice(four, "http", true, "10.0.0.1")}, nil},
		{"two families", []*discoveryv1.EndpointSlice{slice(six, "https", true, "fd00::1"), slice(four, "https", true, "10.0.0.1")},
			[]string{"10.0.0.1:8443"}},
		{"the other family", []*discoveryv1.EndpointSlice{slice(six, "https", true, "fd00::1"), slice(four, "https", false, "10.0.0.1")},
			[]string{"[fd00::1]:8443"}},
	} {
		if d := cmp.Diff(c.want, ready(c.slices, "https", []corev1.IPFamily{corev1.IPv4Protocol})); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}

// A request beyond the limit of a server gets a 429; a long-running one is not counted.
func TestMost(t *testing.T) {
	a := New(Options{Most: 1})
	e := &entry{gate: make(chan struct{}, 1)}
	e.gate <- struct{}{}
	s := &Service{Name: "v1.x.io", Available: true, aggregator: a, entry: e, way: &way{}}
	r := httptest.NewRequest(http.MethodGet, "/apis/x.io/v1/things", nil)
	w := httptest.NewRecorder()
	s.Serve(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{})), false, context.Background())
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" ||
		!strings.Contains(w.Header().Get("Warning"), "v1.x.io") {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
