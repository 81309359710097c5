// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/resource"
)

// allowedBySets is the slow reference implementation: a user is the set of its names, a request the set of all words by
// which a rule can match it, and a rule matches if it shares a word with each.
func allowedBySets(objs []resource.Object, a *authorize.Attributes) bool {
	me := []string{"User " + a.User.GetName()}
	for _, g := range a.User.GetGroups() {
		me = append(me, "Group "+g)
	}
	if p := strings.Split(a.User.GetName(), ":"); len(p) == 4 && p[0] == "system" && p[1] == "serviceaccount" {
		me = append(me, "ServiceAccount "+p[2]+"/"+p[3])
	}
	shares := func(have, mean []string) bool {
		return slices.ContainsFunc(have, func(h string) bool { return slices.Contains(mean, h) })
	}
	resources := []string{"*", a.Resource}
	if a.Subresource != "" {
		resources = []string{"*", a.Resource + "/" + a.Subresource, "*/" + a.Subresource}
	}
	paths := []string{"*", a.Path}
	for i := range len(a.Path) + 1 {
		paths = append(paths, a.Path[:i]+"*")
	}
	holds := func(r rbacv1.PolicyRule) bool {
		if !shares(r.Verbs, []string{"*", a.Verb}) {
			return false
		}
		if !a.ResourceRequest {
			return shares(r.NonResourceURLs, paths)
		}
		return shares(r.APIGroups, []string{"*", a.Group}) && shares(r.Resources, resources) &&
			(len(r.ResourceNames) == 0 || shares(r.ResourceNames, []string{a.Name}))
	}
	gives := func(subjects []rbacv1.Subject, ref rbacv1.RoleRef, namespace string) bool {
		bound := slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool {
			name := s.Name
			if s.Kind == "ServiceAccount" {
				of := s.Namespace
				if of == "" {
					of = namespace
				}
				name = of + "/" + name
			}
			return slices.Contains(me, s.Kind+" "+name)
		})
		if !bound {
			return false
		}
		for _, o := range objs {
			switch o := o.(type) {
			case *rbacv1.Role:
				if ref.Kind == "Role" && o.Name == ref.Name && o.Namespace == namespace && slices.ContainsFunc(o.Rules, holds) {
					return true
				}
			case *rbacv1.ClusterRole:
				if ref.Kind == "ClusterRole" && o.Name == ref.Name && slices.ContainsFunc(o.Rules, holds) {
					return true
				}
			}
		}
		return false
	}
	for _, o := range objs {
		switch o := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			if gives(o.Subjects, o.RoleRef, "") {
				return true
			}
		case *rbacv1.RoleBinding:
			if a.Namespace != "" && o.Namespace == a.Namespace && gives(o.Subjects, o.RoleRef, o.Namespace) {
				return true
			}
		}
	}
	return false
}

// TestAgainstReference compares both implementations on random roles, bindings and requests.
func TestAgainstReference(t *testing.T) {
	yes, asked := 0, 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 7))
		pick := func(of ...string) string { return of[r.IntN(len(of))] }
		some := func(of ...string) (out []string) {
			for range 1 + r.IntN(2) {
				out = append(out, pick(of...))
			}
			return out
		}
		rules := func() (out []rbacv1.PolicyRule) {
			for range 1 + r.IntN(3) {
				rule := rbacv1.PolicyRule{Verbs: some("get", "list", "create", "*")}
				if r.IntN(4) == 0 {
					rule.NonResourceURLs = some("/a", "/a/*", "/a*", "*", "/")
				} else {
					rule.APIGroups, rule.Resources = some("", "apps", "*"), some("pods", "pods/log", "secrets", "*/log", "*", "pods/*")
					if r.IntN(3) == 0 {
						rule.ResourceNames = some("x", "y", "")
					}
				}
				out = append(out, rule)
			}
			return out
		}
		subjects := func() (out []rbacv1.Subject) {
			for range 1 + r.IntN(3) {
				switch r.IntN(3) {
				case 0:
					out = append(out, rbacv1.Subject{Kind: "User", Name: pick("ann", "bob", "system:serviceaccount:a:ann")})
				case 1:
					out = append(out, rbacv1.Subject{Kind: "Group", Name: pick("ann", "devs")})
				case 2:
					out = append(out, rbacv1.Subject{Kind: "ServiceAccount", Namespace: pick("a", "b"), Name: pick("ann", "bob")})
				}
			}
			return out
		}
		var objs []resource.Object
		for i := range 4 {
			name := fmt.Sprint("r", i)
			objs = append(objs, &rbacv1.ClusterRole{ObjectMeta: meta("", name), Rules: rules()},
				&rbacv1.Role{ObjectMeta: meta(pick("a", "b"), name), Rules: rules()},
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", name), RoleRef: ref("ClusterRole", fmt.Sprint("r", r.IntN(5))), Subjects: subjects()},
				&rbacv1.RoleBinding{ObjectMeta: meta(pick("a", "b"), name), RoleRef: ref(pick("Role", "ClusterRole"), fmt.Sprint("r", r.IntN(5))),
					Subjects: subjects()})
		}
		x, _ := load(t, objs)
		for range 200 {
			a := &authorize.Attributes{User: &user.DefaultInfo{Name: pick("ann", "bob", "devs", "system:serviceaccount:a:ann",
				"system:serviceaccount:b:bob"), Groups: [][]string{nil, {"devs"}, {"ann", "x"}}[r.IntN(3)]},
				Verb: pick("get", "list", "create", "delete")}
			if r.IntN(4) == 0 {
				a.Path = pick("/", "/a", "/a/b", "/ab", "/b")
			} else {
				a.ResourceRequest = true
				a.Group, a.Resource, a.Subresource, a.Namespace, a.Name = pick("", "apps", "x"), pick("pods", "secrets"), pick("", "", "log", "exec"),
					pick("", "a", "b"), pick("", "x", "y", "z")
			}
			d, _, err := x.Authorize(t.Context(), a)
			want := allowedBySets(objs, a)
			if err != nil || (d == authorize.Allow) != want {
				t.Fatalf("seed %d: %+v of %s %v: got %v %v, want allowed %v", seed, a, a.User.GetName(), a.User.GetGroups(), d, err, want)
			}
			asked++
			if want {
				yes++
			}
		}
	}
	if yes < asked/20 || yes > asked*19/20 {
		t.Errorf("%d of %d requests are allowed: the cases do not tell much", yes, asked)
	}
}
