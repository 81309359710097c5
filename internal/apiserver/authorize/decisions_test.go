// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorize_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

func TestAdministratorsMayAll(t *testing.T) {
	for name, c := range map[string]struct {
		user user.Info
		want authorize.Decision
	}{
		"nobody":         {nil, authorize.NoOpinion},
		"a user":         {&user.DefaultInfo{Name: "system:masters", Groups: []string{"ops"}}, authorize.NoOpinion},
		"administrators": {&user.DefaultInfo{Name: "root", Groups: []string{"ops", "system:masters"}}, authorize.Allow},
	} {
		if d, reason, err := (authorize.Administrators{}).Authorize(t.Context(), &authorize.Attributes{User: c.user}); d != c.want ||
			reason != "" || err != nil {
			t.Errorf("%s: %v %q %v", name, d, reason, err)
		}
	}
}

func TestOpenPaths(t *testing.T) {
	for _, c := range []struct {
		ask  authorize.Attributes
		want authorize.Decision
	}{
		{authorize.Attributes{Verb: "get", Path: "/healthz"}, authorize.Allow},
		{authorize.Attributes{Verb: "get", Path: "/livez"}, authorize.Allow},
		{authorize.Attributes{Verb: "get", Path: "/readyz"}, authorize.Allow},
		{authorize.Attributes{Verb: "get", Path: "/version"}, authorize.Allow},
		{authorize.Attributes{Verb: "get", Path: "/version/"}, authorize.Allow},
		{authorize.Attributes{Verb: "get", Path: "/healthz/etcd"}, authorize.NoOpinion},
		{authorize.Attributes{Verb: "get", Path: "/metrics"}, authorize.NoOpinion},
		{authorize.Attributes{Verb: "post", Path: "/healthz"}, authorize.NoOpinion},
		{authorize.Attributes{Verb: "get", Path: "/healthz", ResourceRequest: true}, authorize.NoOpinion},
	} {
		if d, reason, err := (authorize.Open{}).Authorize(t.Context(), &c.ask); d != c.want || reason != "" || err != nil {
			t.Errorf("%+v: %v %q %v", c.ask, d, reason, err)
		}
	}
}

func TestForbiddenSaysWhatIsNotAllowed(t *testing.T) {
	jane := &user.DefaultInfo{Name: "jane<b>"}
	for _, c := range []struct {
		ask          authorize.Attributes
		reason, want string
	}{
		{authorize.Attributes{User: jane, Verb: "get", Path: "/x&y"}, "", `forbidden: User "jane&lt;b&gt;" cannot get path "/x&amp;y"`},
		{authorize.Attributes{Verb: "get", Path: "/x"}, "no <role>", `forbidden: User "" cannot get path "/x": no <role>`},
		{authorize.Attributes{User: jane, Verb: "list", Group: "apps", Resource: "deployments", ResourceRequest: true}, "",
			`deployments.apps is forbidden: User "jane&lt;b&gt;" cannot list resource "deployments" in API group "apps" at the cluster scope`},
		{authorize.Attributes{User: jane, Verb: "get", Resource: "pods", Subresource: "log", Namespace: "ns", Name: "p", ResourceRequest: true},
			"why",
			`pods "p" is forbidden: User "jane&lt;b&gt;" cannot get resource "pods/log" in API group "" in the namespace "ns": why`},
	} {
		if err := authorize.Forbidden(&c.ask, c.reason); !apierrors.IsForbidden(err) || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

// TestStandardForm converts each decision to the libraries' form and back.
func TestStandardForm(t *testing.T) {
	broken := errors.New("broken")
	for ours, theirs := range map[authorize.Decision]authorizer.Decision{
		authorize.Allow: authorizer.DecisionAllow, authorize.Deny: authorizer.DecisionDeny, authorize.NoOpinion: authorizer.DecisionNoOpinion,
	} {
		z := fixed{"z", ours, "because", broken}
		if d, reason, err := authorize.Standard(z)(t.Context(), authorizer.AttributesRecord{}); d != theirs || reason != "because" ||
			!errors.Is(err, broken) {
			t.Errorf("%v becomes %v %q %v", ours, d, reason, err)
		}
		asked := ""
		library := authorize.Library(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = a.GetVerb() + " " + a.GetResource()
			return theirs, "because", broken
		})
		d, reason, err := library.Authorize(t.Context(), &authorize.Attributes{Verb: "get", Resource: "pods"})
		if d != ours || reason != "because" || !errors.Is(err, broken) || asked != "get pods" {
			t.Errorf("%v becomes %v %q %v; asked %q", theirs, d, reason, err, asked)
		}
	}
}

func TestAttemptsAreCounted(t *testing.T) {
	m := authorize.NewAttempts()
	m.Observe(authorize.Allow, nil, time.Second)
	m.Observe(authorize.Allow, errors.New("x"), time.Second)
	m.Observe(authorize.Deny, nil, time.Second)
	m.Observe(authorize.NoOpinion, nil, time.Second)
	m.Observe(authorize.NoOpinion, errors.New("x"), time.Second)
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, x := range f.Metric {
			if x.Counter != nil {
				got[f.GetName()+" "+x.Label[0].GetValue()] = x.Counter.GetValue()
			}
		}
	}
	const name = "authorization_attempts_total "
	if diff := cmp.Diff(map[string]float64{name + "allowed": 2, name + "denied": 1, name + "error": 1, name + "no-opinion": 1},
		got); diff != "" {
		t.Error(diff)
	}
}
