// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// objects is a backend with the objects of an index.
type objects struct {
	resource.Backend
	mu  sync.Mutex
	all map[string]resource.Object
}

func key(r schema.GroupResource, namespace, name string) string {
	return r.Resource + "/" + namespace + "/" + name
}

func (o *objects) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if obj := o.all[key(r, namespace, name)]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (o *objects) List(_ context.Context, r schema.GroupResource, _ string) (list []resource.Object, _ error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for k, obj := range o.all {
		if strings.HasPrefix(k, r.Resource+"/") {
			list = append(list, obj)
		}
	}
	return list, nil
}

func (o *objects) put(obj resource.Object) schema.GroupResource {
	r := map[string]schema.GroupResource{"*v1.Role": Roles, "*v1.ClusterRole": ClusterRoles, "*v1.RoleBinding": RoleBindings,
		"*v1.ClusterRoleBinding": ClusterRoleBindings}[fmt.Sprintf("%T", obj)]
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[key(r, obj.GetNamespace(), obj.GetName())] = obj
	return r
}

func meta(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func rule(verbs, groups, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: strings.Split(groups, ","), Resources: strings.Split(resources, ","),
		ResourceNames: names}
}

func paths(verbs, urls string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), NonResourceURLs: strings.Split(urls, ",")}
}

func ref(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

func fixture() []resource.Object {
	user := func(n string) rbacv1.Subject { return rbacv1.Subject{Kind: "User", Name: n} }
	group := func(n string) rbacv1.Subject { return rbacv1.Subject{Kind: "Group", Name: n} }
	account := func(ns, n string) rbacv1.Subject {
		return rbacv1.Subject{Kind: "ServiceAccount", Namespace: ns, Name: n}
	}
	return []resource.Object{
		&rbacv1.ClusterRole{ObjectMeta: meta("", "view"), Rules: []rbacv1.PolicyRule{rule("get,list", "", "pods,pods/log")}},
		&rbacv1.ClusterRole{ObjectMeta: meta("", "all"), Rules: []rbacv1.PolicyRule{rule("*", "*", "*"), paths("*", "*")}},
		&rbacv1.ClusterRole{ObjectMeta: meta("", "status"), Rules: []rbacv1.PolicyRule{rule("update", "apps", "*/status")}},
		&rbacv1.ClusterRole{ObjectMeta: meta("", "urls"), Rules: []rbacv1.PolicyRule{paths("get", "/logs,/api/*")}},
		&rbacv1.Role{ObjectMeta: meta("a", "one"), Rules: []rbacv1.PolicyRule{rule("get", "", "secrets", "s1", "s2")}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", "viewers"), RoleRef: ref("ClusterRole", "view"),
			Subjects: []rbacv1.Subject{user("zoe"), group("viewers")}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", "roots"), RoleRef: ref("ClusterRole", "all"),
			Subjects: []rbacv1.Subject{account("kube-system", "root"), account("", "nobody")}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta("", "urls"), RoleRef: ref("ClusterRole", "urls"),
			Subjects: []rbacv1.Subject{group("everybody")}},
		&rbacv1.RoleBinding{ObjectMeta: meta("a", "status"), RoleRef: ref("ClusterRole", "status"),
			Subjects: []rbacv1.Subject{account("", "op"), account("b", "op")}},
		&rbacv1.RoleBinding{ObjectMeta: meta("a", "ones"), RoleRef: ref("Role", "one"), Subjects: []rbacv1.Subject{user("bob")}},
		&rbacv1.RoleBinding{ObjectMeta: meta("a", "lost"), RoleRef: ref("Role", "missing"), Subjects: []rbacv1.Subject{group("lost")}},
		&rbacv1.RoleBinding{ObjectMeta: meta("a", "lost2"), RoleRef: ref("ClusterRole", "missing"), Subjects: []rbacv1.Subject{group("lost")}},
	}
}

func load(t *testing.T, objs []resource.Object) (*Index, *objects) {
	b := &objects{all: map[string]resource.Object{}}
	for _, o := range objs {
		b.put(o)
	}
	x := &Index{}
	if err := x.Load(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	return x, b
}

// ask parses "USER[+GROUP...] VERB [GROUP:]RESOURCE[/SUB] [NAMESPACE[/NAME]]" or "USER VERB /PATH", and authorizes the
// request.
func ask(s string) *authorize.Attributes {
	f := strings.Fields(s)
	names := strings.Split(f[0], "+")
	a := &authorize.Attributes{User: &user.DefaultInfo{Name: names[0], Groups: names[1:]}, Verb: f[1]}
	if strings.HasPrefix(f[2], "/") {
		a.Path = f[2]
		return a
	}
	a.ResourceRequest = true
	res := f[2]
	if g, r, ok := strings.Cut(res, ":"); ok {
		a.Group, res = g, r
	}
	a.Resource, a.Subresource, _ = strings.Cut(res, "/")
	if len(f) > 3 {
		a.Namespace, a.Name, _ = strings.Cut(f[3], "/")
	}
	return a
}

func TestAuthorize(t *testing.T) {
	x, _ := load(t, fixture())
	for _, c := range []struct{ ask, want string }{
		{"zoe get pods a/p", `yes: RBAC: allowed by ClusterRoleBinding "viewers" of ClusterRole "view" to User "zoe"`},
		{"al+viewers list pods", `yes: RBAC: allowed by ClusterRoleBinding "viewers" of ClusterRole "view" to Group "viewers"`},
		{"zoe+viewers list pods", `yes: RBAC: allowed by ClusterRoleBinding "viewers" of ClusterRole "view" to User "zoe"`},
		{"zoe get pods/log a/p", `yes: RBAC: allowed by ClusterRoleBinding "viewers" of ClusterRole "view" to User "zoe"`},
		{"zoe get pods/exec a/p", "no: "},
		{"zoe watch pods a", "no: "},
		{"zoe get apps:pods a", "no: "},
		{"zoe get /logs", "no: "},
		{"viewers get pods", "no: "}, // a user with a group's name
		{"system:serviceaccount:kube-system:root delete apps:deployments/scale x/y",
			`yes: RBAC: allowed by ClusterRoleBinding "roots" of ClusterRole "all" to ServiceAccount "root/kube-system"`},
		{"system:serviceaccount:kube-system:root post /metrics",
			`yes: RBAC: allowed by ClusterRoleBinding "roots" of ClusterRole "all" to ServiceAccount "root/kube-system"`},
		{"system:serviceaccount::nobody get pods", "no: "},
		{"x+everybody get /logs", `yes: RBAC: allowed by ClusterRoleBinding "urls" of ClusterRole "urls" to Group "everybody"`},
		{"x+everybody get /api/v1", `yes: RBAC: allowed by ClusterRoleBinding "urls" of ClusterRole "urls" to Group "everybody"`},
		{"x+everybody get /api", "no: "},
		{"x+everybody get /logs/x", "no: "},
		{"system:serviceaccount:a:op update apps:deployments/status a/d",
			`yes: RBAC: allowed by RoleBinding "status/a" of ClusterRole "status" to ServiceAccount "op/a"`},
		{"system:serviceaccount:b:op update apps:deployments/status a/d",
			`yes: RBAC: allowed by RoleBinding "status/a" of ClusterRole "status" to ServiceAccount "op/b"`},
		{"system:serviceaccount:a:op update apps:deployments a/d", "no: "},
		{"system:serviceaccount:a:op update apps:deployments/status b/d", "no: "},
		{"system:serviceaccount:a:op update apps:deployments/status", "no: "},
		{"bob get secrets a/s1", `yes: RBAC: allowed by RoleBinding "ones/a" of Role "one" to User "bob"`},
		{"bob get secrets a/s3", "no: "},
		{"bob list secrets a", "no: "},
		{"bob get secrets b/s1", "no: "},
		{"x+lost get pods a", `no: RBAC: [role.rbac.authorization.k8s.io "missing" not found, clusterrole.rbac.authorization.k8s.io "missing" not found]`},
		{"x+lost get pods b", "no: "},
	} {
		d, reason, err := x.Authorize(t.Context(), ask(c.ask))
		got := map[authorize.Decision]string{authorize.Allow: "yes", authorize.NoOpinion: "no", authorize.Deny: "deny"}[d] + ": " + reason
		if err != nil || got != c.want {
			t.Errorf("%s:\n got %s, %v\nwant %s", c.ask, got, err, c.want)
		}
	}
	if d, _, _ := x.Authorize(t.Context(), &authorize.Attributes{Verb: "get", Path: "/logs"}); d != authorize.NoOpinion {
		t.Errorf("without a user: %v", d)
	}
}

func TestRulesAreListedByBinding(t *testing.T) {
	x, _ := load(t, fixture())
	resources, urls, incomplete, err := x.Review(t.Context(), &user.DefaultInfo{Name: "bob", Groups: []string{"viewers", "everybody", "lost"}},
		"a")
	if incomplete || err == nil || err.Error() != `[role.rbac.authorization.k8s.io "missing" not found, clusterrole.rbac.authorization.k8s.io "missing" not found]` {
		t.Errorf("incomplete %v, error %v", incomplete, err)
	}
	var got []string
	for _, r := range resources {
		got = append(got, strings.Join(r.Resources, ","))
	}
	for _, r := range urls {
		got = append(got, strings.Join(r.NonResourceURLs, ","))
	}
	if diff := cmp.Diff([]string{"pods,pods/log", "secrets", "/logs,/api/*"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestFollowsChanges changes random objects, and compares the index with one that is loaded from scratch. Some changes
// are missed; then everything is loaded.
func TestFollowsChanges(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		x, b := load(t, fixture())
		objs := fixture()
		missed := false
		for step := range 200 {
			o := objs[rnd.IntN(len(objs))].DeepCopyObject().(resource.Object)
			switch o := o.(type) {
			case *rbacv1.Role:
				o.Rules = o.Rules[:rnd.IntN(len(o.Rules)+1)]
			case *rbacv1.ClusterRole:
				o.Rules = o.Rules[:rnd.IntN(len(o.Rules)+1)]
			case *rbacv1.RoleBinding:
				o.Subjects = o.Subjects[:rnd.IntN(len(o.Subjects)+1)]
			case *rbacv1.ClusterRoleBinding:
				o.Subjects = append(o.Subjects, rbacv1.Subject{Kind: "Group", Name: []string{"viewers", "lost", "everybody"}[rnd.IntN(3)]})
			}
			r := b.put(o)
			c := &feed.Change{Resource: r, Namespace: o.GetNamespace(), Name: o.GetName(), Object: o}
			if rnd.IntN(4) == 0 {
				delete(b.all, key(r, o.GetNamespace(), o.GetName()))
				c.Object = nil
			}
			if missed = missed || rnd.IntN(50) == 0; !missed {
				if err := x.Apply(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
			if missed && (rnd.IntN(10) == 0 || step == 199) {
				missed = false
				if err := x.Load(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
		}
		fresh := &Index{}
		if err := fresh.Load(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"zoe", "bob", "system:serviceaccount:a:op", "system:serviceaccount:kube-system:root", "x"} {
			u := &user.DefaultInfo{Name: name, Groups: []string{"viewers", "lost", "everybody"}}
			got, err1 := x.RulesFor(u, "a")
			want, err2 := fresh.RulesFor(u, "a")
			if diff := cmp.Diff(want, got); diff != "" || fmt.Sprint(err1) != fmt.Sprint(err2) {
				t.Fatalf("seed %d, %s: %v, %v\n%s", seed, name, err1, err2, diff)
			}
		}
		left := 0
		for k := range x.grants.Range {
			if v, _ := fresh.grants.Load(k); v == nil {
				left++
			}
		}
		if left > 0 || len(x.bindings) != len(fresh.bindings) {
			t.Fatalf("seed %d: %d subjects without grants are kept, %d bindings of %d", seed, left, len(x.bindings), len(fresh.bindings))
		}
	}
}

func BenchmarkAuthorize(b *testing.B) {
	objs := fixture()
	for i := range 1000 {
		objs = append(objs, &rbacv1.RoleBinding{ObjectMeta: meta(fmt.Sprint("ns", i%50), fmt.Sprint("b", i)), RoleRef: ref("ClusterRole", "view"),
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: fmt.Sprint("sa", i), Namespace: fmt.Sprint("ns", i%50)}}})
	}
	be := &objects{all: map[string]resource.Object{}}
	for _, o := range slices.Backward(objs) {
		be.put(o)
	}
	x := &Index{}
	if err := x.Load(b.Context(), be); err != nil {
		b.Fatal(err)
	}
	a := ask("system:serviceaccount:ns7:sa57+system:serviceaccounts+system:serviceaccounts:ns7+system:authenticated get pods ns7/p")
	b.ReportAllocs()
	for b.Loop() {
		if d, _, _ := x.Authorize(b.Context(), a); d != authorize.Allow {
			b.Fatal("not allowed")
		}
	}
}
