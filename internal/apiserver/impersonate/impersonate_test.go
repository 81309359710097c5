// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package impersonate

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// rules allow the listed permissions: VERB RESOURCE[/SUB] NAME.
type rules []string

func said(a *authorize.Attributes) string {
	r := a.Resource
	if a.Group != "" {
		r += "." + a.Group
	}
	if a.Subresource != "" {
		r += "/" + a.Subresource
	}
	if a.Namespace != "" {
		r = a.Namespace + ":" + r
	}
	return a.Verb + " " + r + " " + a.Name
}

func (r rules) Authorize(_ context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
	if slices.Contains(r, said(a)) {
		return authorize.Allow, "", nil
	}
	return authorize.NoOpinion, "", nil
}

func TestAs(t *testing.T) {
	agent := &user.DefaultInfo{Name: "system:serviceaccount:kube-system:agent",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}}}
	alice := &user.DefaultInfo{Name: "alice"}
	listPods := authorize.Attributes{Verb: "list", Version: "v1", Resource: "pods", Namespace: "ns", ResourceRequest: true}
	for _, c := range []struct {
		name       string
		from       user.Info
		headers    http.Header
		may        rules
		who        string
		groups     []string
		constraint string
		error      string
	}{
		{name: "nobody", headers: http.Header{}},
		{name: "groups alone", headers: http.Header{"Impersonate-Group": {"g"}}, error: "without impersonating a user name"},
		{name: "not allowed", headers: http.Header{"Impersonate-User": {"bob"}},
			error: `pods is forbidden: User "alice" cannot impersonate-on:user-info:list resource "pods" in API group "" in the namespace "ns"`},
		{name: "the old way", headers: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"g"}, "Impersonate-Uid": {"7"},
			"Impersonate-Extra-Scopes": {"x"}},
			may: rules{"impersonate users bob", "impersonate groups g", "impersonate uids.authentication.k8s.io 7",
				"impersonate userextras.authentication.k8s.io/scopes x"},
			who: "bob", groups: []string{"g", "system:authenticated"}},
		{name: "the old way, without the group", headers: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"g"}},
			may: rules{"impersonate users bob"}, error: "cannot impersonate-on:user-info:list"},
		{name: "user-info", headers: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"g"}},
			may: rules{"impersonate-on:user-info:list ns:pods ", "impersonate:user-info users.authentication.k8s.io bob",
				"impersonate:user-info groups.authentication.k8s.io g"},
			who: "bob", groups: []string{"g", "system:authenticated"}, constraint: "impersonate:user-info"},
		{name: "user-info, for other things", headers: http.Header{"Impersonate-User": {"bob"}},
			may:   rules{"impersonate-on:user-info:get ns:pods ", "impersonate:user-info users.authentication.k8s.io bob"},
			error: "cannot impersonate-on:user-info:list"},
		{name: "user-info, administrators", headers: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"system:masters"}},
			may: rules{"impersonate-on:user-info:list ns:pods ", "impersonate:user-info users.authentication.k8s.io bob",
				"impersonate:user-info groups.authentication.k8s.io system:masters"},
			error: "impersonating the system:masters group is not allowed"},
		{name: "user-info, extra key in disorder", headers: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Extra-Scopes": {"x"}},
			may:   rules{"impersonate-on:user-info:list ns:pods ", "impersonate:user-info users.authentication.k8s.io bob"},
			error: "impersonating an invalid key in extra is not allowed"},
		{name: "user-info, many groups", headers: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"a", "b", "c", "d"}},
			may: rules{"impersonate-on:user-info:list ns:pods ", "impersonate:user-info users.authentication.k8s.io bob",
				"impersonate:user-info groups.authentication.k8s.io *"},
			who: "bob", groups: []string{"a", "b", "c", "d", "system:authenticated"}, constraint: "impersonate:user-info"},
		{name: "service account", headers: http.Header{"Impersonate-User": {"system:serviceaccount:ns:sa"}},
			may: rules{"impersonate-on:serviceaccount:list ns:pods ", "impersonate:serviceaccount ns:serviceaccounts.authentication.k8s.io sa"},
			who: "system:serviceaccount:ns:sa", groups: []string{"system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"},
			constraint: "impersonate:serviceaccount"},
		{name: "service account is no user-info", headers: http.Header{"Impersonate-User": {"system:serviceaccount:ns:sa"}},
			may:   rules{"impersonate-on:user-info:list ns:pods ", "impersonate:user-info users.authentication.k8s.io system:serviceaccount:ns:sa"},
			error: "cannot impersonate-on:serviceaccount:list"},
		{name: "node", headers: http.Header{"Impersonate-User": {"system:node:n2"}},
			may: rules{"impersonate-on:arbitrary-node:list ns:pods ", "impersonate:arbitrary-node nodes.authentication.k8s.io n2"},
			who: "system:node:n2", groups: []string{"system:nodes", "system:authenticated"}, constraint: "impersonate:arbitrary-node"},
		{name: "own node", from: agent, headers: http.Header{"Impersonate-User": {"system:node:n1"}},
			may: rules{"impersonate-on:associated-node:list ns:pods ", "impersonate:associated-node nodes.authentication.k8s.io *"},
			who: "system:node:n1", groups: []string{"system:nodes", "system:authenticated"}, constraint: "impersonate:associated-node"},
		{name: "another's node", from: agent, headers: http.Header{"Impersonate-User": {"system:node:n2"}},
			may:   rules{"impersonate-on:associated-node:list ns:pods ", "impersonate:associated-node nodes.authentication.k8s.io *"},
			error: "cannot impersonate-on:arbitrary-node:list"},
		{name: "anonymous", headers: http.Header{"Impersonate-User": {"system:anonymous"}}, may: rules{"impersonate users system:anonymous"},
			who: "system:anonymous", groups: []string{"system:unauthenticated"}},
		{name: "unauthenticated", headers: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"system:unauthenticated"}},
			may: rules{"impersonate users bob", "impersonate groups system:unauthenticated"}, who: "bob",
			groups: []string{"system:unauthenticated"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := listPods
			request.User = alice
			if c.from != nil {
				request.User = c.from
			}
			i := New(c.may)
			for range 2 { // the second time the cached mode is tried first
				h := c.headers.Clone()
				who, constraint, err := i.As(t.Context(), h, request)
				if c.error != "" {
					if err == nil || !strings.Contains(err.Error(), c.error) {
						t.Fatalf("error %v, want %s", err, c.error)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if c.who == "" {
					if who != nil {
						t.Errorf("who: %v", who)
					}
					continue
				}
				if who.GetName() != c.who || !slices.Equal(who.GetGroups(), c.groups) || constraint != c.constraint || len(h) != 0 {
					t.Errorf("who %+v by %q, left %v", who, constraint, h)
				}
			}
		})
	}
}

func FuzzRequested(f *testing.F) {
	f.Add("Impersonate-Extra-A%2fb", "x", "bob")
	f.Add("Impersonate-Extra-", "", "")
	f.Fuzz(func(t *testing.T, name, value, who string) {
		h := http.Header{name: {value}, userHeader: {who}}
		got, err := Requested(h)
		if err == nil && (got == nil) != (who == "") {
			t.Fatalf("%q %q gave %v", name, who, got)
		}
	})
}

func TestMetrics(t *testing.T) {
	i := New(rules{"impersonate users bob"})
	asker := &user.DefaultInfo{Name: "alice"}
	for _, name := range []string{"bob", "root"} {
		if _, _, err := i.As(t.Context(), http.Header{"Impersonate-User": {name}},
			authorize.Attributes{User: asker, Verb: "get", ResourceRequest: true, Resource: "pods"}); (err == nil) != (name == "bob") {
			t.Fatalf("%s: %v", name, err)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(i)
	got, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, f := range got {
		for _, m := range f.Metric {
			if m.Counter != nil {
				counts[f.GetName()+" "+m.Label[1].GetValue()+" "+m.Label[0].GetValue()] = m.Counter.GetValue()
			}
		}
	}
	const asks = "apiserver_impersonation_authorization_attempts_total "
	if counts["apiserver_impersonation_attempts_total legacy allowed"] != 1 || counts["apiserver_impersonation_attempts_total  denied"] != 1 ||
		counts[asks+"legacy allowed"] != 1 || counts[asks+"legacy denied"] != 1 || counts[asks+"user-info denied"] == 0 {
		t.Errorf("counted %v", counts)
	}
}
