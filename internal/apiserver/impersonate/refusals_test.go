// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package impersonate

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

func TestWanted(t *testing.T) {
	for name, want := range map[string]bool{"Impersonate-User": true, "Impersonate-Extra-X": true, "X-Impersonate-User": false,
		"Accept": false} {
		if Wanted(http.Header{name: {"x"}}) != want {
			t.Errorf("%s: want %v", name, want)
		}
	}
	if Wanted(nil) {
		t.Error("no header names nobody")
	}
}

func TestRequestedExtra(t *testing.T) {
	h := http.Header{"Impersonate-User": {"bob"}, "Impersonate-Extra-Example.org%2fscopes": {"x", "y"}, "Impersonate-Extra-Bad%zz": {"z"},
		"Impersonate-Extra-None": {}, "Accept": {"*/*"}}
	who, err := Requested(h)
	if err != nil || len(who.Extra) != 2 || !slices.Equal(who.Extra["example.org/scopes"], []string{"x", "y"}) ||
		!slices.Equal(who.Extra["bad%zz"], []string{"z"}) {
		t.Errorf("%+v, %v", who, err)
	}
	if len(h) != 1 || h.Get("Accept") == "" {
		t.Errorf("left are %v", h)
	}
}

// asked records the checks that an authorizer received.
type asked struct {
	rules rules
	all   []string
}

func (z *asked) Authorize(ctx context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
	z.all = append(z.all, said(a))
	return z.rules.Authorize(ctx, a)
}

// TestConstrainedExtra checks that constrained modes reject extra values that unconstrained impersonation accepts, in
// kube-apiserver's words. Headers cannot express all of them, so the test calls the check directly.
func TestConstrainedExtra(t *testing.T) {
	for _, c := range []struct {
		extra map[string][]string
		want  string
	}{
		{map[string][]string{"": {"x"}}, "impersonating the empty string key in extra is not allowed"},
		{map[string][]string{"scopes": {"x"}}, "impersonating an invalid key in extra is not allowed"},
		{map[string][]string{"example.org/Scopes": {"x"}}, `impersonating a non-lowercase key in extra is not allowed: "example.org/Scopes"`},
		{map[string][]string{"example.org/scopes": {}}, "impersonating empty values in extra is not allowed"},
		{map[string][]string{"example.org/scopes": {"x", ""}}, "impersonating the empty string value in extra is not allowed"},
		{map[string][]string{"example.org/scopes": {"x"}}, ""},
	} {
		err := checkExtra(c.extra)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.extra, err, c.want)
		}
	}
}

// TestQuestions checks which authorization checks each request makes when all are allowed.
func TestQuestions(t *testing.T) {
	const on, bob = "impersonate-on:user-info:list pods ", "impersonate:user-info users.authentication.k8s.io bob"
	const extras = "impersonate:user-info userextras.authentication.k8s.io/"
	key := func(n string) string { return "Impersonate-Extra-Example.org%2f" + n }
	for _, c := range []struct {
		name    string
		headers http.Header
		may     rules
		error   string
	}{
		{"uid refused", http.Header{"Impersonate-Uid": {"7"}}, rules{on, bob}, "cannot impersonate-on"},
		{"uid", http.Header{"Impersonate-Uid": {"7"}}, rules{on, bob, "impersonate:user-info uids.authentication.k8s.io 7"}, ""},
		{"user refused", http.Header{}, rules{on}, `cannot impersonate:user-info resource "users"`},
		{"empty group", http.Header{"Impersonate-Group": {"", "g"}}, rules{on, bob}, "impersonating the empty string group is not allowed"},
		{"group refused", http.Header{"Impersonate-Group": {"g"}}, rules{on, bob}, `cannot impersonate:user-info resource "groups"`},
		{"four groups, one by one", http.Header{"Impersonate-Group": {"a", "b", "c", "d"}},
			rules{on, bob, "impersonate:user-info groups.authentication.k8s.io a",
				"impersonate:user-info groups.authentication.k8s.io b", "impersonate:user-info groups.authentication.k8s.io c",
				"impersonate:user-info groups.authentication.k8s.io d"}, ""},
		{"three groups are not asked at once", http.Header{"Impersonate-Group": {"a", "b", "c"}},
			rules{on, bob, "impersonate:user-info groups.authentication.k8s.io *"}, `resource "groups"`},
		{"extra", http.Header{key("a"): {"x"}}, rules{on, bob, extras + "example.org/a x"}, ""},
		{"extra refused", http.Header{key("a"): {"x"}}, rules{on, bob, extras + "example.org/a y"},
			`cannot impersonate:user-info resource "userextras/example.org/a"`},
		{"four values of extra at once", http.Header{key("a"): {"x", "y"}, key("b"): {"x", "y"}}, rules{on, bob, extras + "* *"}, ""},
		{"three are not asked at once", http.Header{key("a"): {"x", "y"}, key("b"): {"x"}}, rules{on, bob, extras + "* *"},
			`resource "userextras/example.org/a"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := c.headers.Clone()
			h.Set("Impersonate-User", "bob")
			if c.error == "cannot impersonate-on" {
				c.error = `cannot impersonate:user-info resource "uids"`
			}
			request := authorize.Attributes{User: &user.DefaultInfo{Name: "alice"}, Verb: "list", Resource: "pods", ResourceRequest: true}
			who, constraint, err := New(c.may).As(t.Context(), h, request)
			if c.error != "" {
				if who != nil || err == nil || !strings.Contains(err.Error(), c.error) {
					t.Errorf("%v, %v, want %s", who, err, c.error)
				}
				return
			}
			if err != nil || who.GetName() != "bob" || constraint != "impersonate:user-info" {
				t.Errorf("%v by %q, %v", who, constraint, err)
			}
		})
	}
}

// TestTheModeThatAllowedIsTriedFirst counts the checks of the first and the second request.
func TestTheModeThatAllowedIsTriedFirst(t *testing.T) {
	z := &asked{rules: rules{"impersonate users bob"}}
	i := New(z)
	for n, want := range []int{2, 1} { // user-info rejects first, then the unconstrained mode allows
		z.all = nil
		if _, _, err := i.As(t.Context(), http.Header{"Impersonate-User": {"bob"}},
			authorize.Attributes{User: &user.DefaultInfo{Name: "alice"}, Verb: "get", Resource: "pods", ResourceRequest: true}); err != nil ||
			len(z.all) != want {
			t.Errorf("request %d: asked %v, %v", n, z.all, err)
		}
	}
}

// TestAnErrorIsToldToTheUser checks that an authorizer's error precedes its reason in the rejection.
func TestAnErrorIsToldToTheUser(t *testing.T) {
	own := authorize.Forbidden(&authorize.Attributes{Verb: "get", Path: "/own"}, "")
	for _, c := range []struct {
		reason string
		err    error
		want   string
	}{
		{"", nil, `at the cluster scope`}, {"why", nil, ": why"}, {"", errors.New("broken"), ": broken"},
		{"why", errors.New("broken"), ": broken: why"}, {"why", own, own.Error()},
	} {
		i := New(authorize.Func(func(context.Context, *authorize.Attributes) (authorize.Decision, string, error) {
			return authorize.NoOpinion, c.reason, c.err
		}))
		_, _, err := i.As(t.Context(), http.Header{"Impersonate-User": {"bob"}},
			authorize.Attributes{User: &user.DefaultInfo{Name: "alice"}, Verb: "get", Resource: "pods", ResourceRequest: true})
		if err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%q %v: %v, want %s", c.reason, c.err, err, c.want)
		}
	}
}
