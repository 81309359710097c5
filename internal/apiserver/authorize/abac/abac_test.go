// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package abac

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

func decode(line []byte) (p Policy, old bool, err error) {
	err = json.Unmarshal(line, &p)
	return p, strings.Contains(string(line), "old"), err
}

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policies")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# who may\n\n  \n{\"User\":\"jane\"}\n{\"User\":\"old\"}\n")
	got, old, err := Read(file, decode)
	if diff := cmp.Diff(Policies{{User: "jane"}, {User: "old"}}, got); diff != "" || old != 1 || err != nil {
		t.Errorf("%d of the old form, %v\n%s", old, err, diff)
	}
	write("# nobody\n")
	if got, old, err := Read(file, decode); got == nil || len(got) != 0 || old != 0 || err != nil {
		t.Errorf("a file without policies: %v, %d, %v", got, old, err)
	}
	write("{\"User\":\"jane\"}\n\n{\n")
	if got, _, err := Read(file, decode); got != nil || err == nil ||
		!strings.Contains(err.Error(), "error reading policy file "+file+", line 3: {: ") {
		t.Errorf("a broken line: %v, %v", got, err)
	}
	write(strings.Repeat("x", 1<<17))
	if got, _, err := Read(file, decode); got != nil || err == nil || !strings.Contains(err.Error(), "error reading policy file "+file) {
		t.Errorf("an endless line: %v, %v", got, err)
	}
	if got, _, err := Read(file+"x", decode); got != nil || !os.IsNotExist(err) {
		t.Errorf("no file: %v, %v", got, err)
	}
}

func TestAuthorize(t *testing.T) {
	pods := func(p Policy) Policy {
		p.Resource, p.Namespace, p.APIGroup = "pods", "ns", "*"
		return p
	}
	jane := &user.DefaultInfo{Name: "jane", Groups: []string{"ops", "dev"}}
	get := authorize.Attributes{User: jane, Verb: "get", Resource: "pods", Namespace: "ns", ResourceRequest: true}
	with := func(f func(*authorize.Attributes)) authorize.Attributes {
		a := get
		f(&a)
		return a
	}
	path := func(p string) authorize.Attributes { return authorize.Attributes{User: jane, Verb: "get", Path: p} }
	for name, c := range map[string]struct {
		policy Policy
		ask    authorize.Attributes
		want   bool
	}{
		"the user":               {pods(Policy{User: "jane"}), get, true},
		"another user":           {pods(Policy{User: "bob"}), get, false},
		"every user":             {pods(Policy{User: "*"}), get, true},
		"nobody named":           {pods(Policy{}), get, false},
		"no user":                {pods(Policy{User: "*"}), with(func(a *authorize.Attributes) { a.User = nil }), false},
		"a group":                {pods(Policy{Group: "dev"}), get, true},
		"another group":          {pods(Policy{Group: "qa"}), get, false},
		"every group":            {pods(Policy{Group: "*"}), get, true},
		"the user, in the group": {pods(Policy{User: "jane", Group: "ops"}), get, true},
		"the user, not in it":    {pods(Policy{User: "jane", Group: "qa"}), get, false},
		"another in the group":   {pods(Policy{User: "bob", Group: "ops"}), get, false},
		"reads, get":             {pods(Policy{User: "jane", Readonly: true}), get, true},
		"reads, list":            {pods(Policy{User: "jane", Readonly: true}), with(func(a *authorize.Attributes) { a.Verb = "list" }), true},
		"reads, watch":           {pods(Policy{User: "jane", Readonly: true}), with(func(a *authorize.Attributes) { a.Verb = "watch" }), true},
		"reads, a write": {pods(Policy{User: "jane", Readonly: true}), with(func(a *authorize.Attributes) { a.Verb = "create" }),
			false},
		"writes":                   {pods(Policy{User: "jane"}), with(func(a *authorize.Attributes) { a.Verb = "create" }), true},
		"another namespace":        {pods(Policy{User: "jane"}), with(func(a *authorize.Attributes) { a.Namespace = "x" }), false},
		"another resource":         {pods(Policy{User: "jane"}), with(func(a *authorize.Attributes) { a.Resource = "secrets" }), false},
		"another API group":        {Policy{User: "jane", Resource: "pods", Namespace: "ns", APIGroup: "apps"}, get, false},
		"a path":                   {Policy{User: "jane", NonResourcePath: "/logs"}, path("/logs"), true},
		"below a path":             {Policy{User: "jane", NonResourcePath: "/logs"}, path("/logs/x"), false},
		"below a pattern":          {Policy{User: "jane", NonResourcePath: "/logs/*"}, path("/logs/x"), true},
		"beside a pattern":         {Policy{User: "jane", NonResourcePath: "/logs/*"}, path("/metrics"), false},
		"every path":               {Policy{User: "jane", NonResourcePath: "*"}, path("/metrics"), true},
		"a path is no resource":    {Policy{User: "jane", NonResourcePath: "*"}, get, false},
		"a resource is not a path": {Policy{User: "jane", Resource: "*", Namespace: "*", APIGroup: "*"}, path("/logs"), false},
	} {
		ps := Policies{{User: "nobody", NonResourcePath: "*"}, c.policy}
		d, reason, err := ps.Authorize(t.Context(), &c.ask)
		want, because := authorize.NoOpinion, "No policy matched."
		if c.want {
			want, because = authorize.Allow, ""
		}
		if d != want || reason != because || err != nil {
			t.Errorf("%s: %v %q %v", name, d, reason, err)
		}
	}
	if (Policies{}).Name() != "abac" {
		t.Error("the name")
	}
}

func TestReview(t *testing.T) {
	ps := Policies{
		{User: "jane", Namespace: "ns", Resource: "pods", APIGroup: "*"},
		{User: "jane", Namespace: "*", NonResourcePath: "/logs", Readonly: true},
		{User: "jane", Namespace: "other", Resource: "secrets"}, {User: "bob", Namespace: "*", Resource: "secrets"},
	}
	rs, paths, incomplete, err := ps.Review(t.Context(), &user.DefaultInfo{Name: "jane"}, "ns")
	wantRules := []authorizationv1.ResourceRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"pods"}}}
	wantPaths := []authorizationv1.NonResourceRule{{Verbs: []string{"get", "list", "watch"}, NonResourceURLs: []string{"/logs"}}}
	if diff := cmp.Diff(wantRules, rs) + cmp.Diff(wantPaths, paths); diff != "" || incomplete || err != nil {
		t.Errorf("%v %v\n%s", incomplete, err, diff)
	}
}
