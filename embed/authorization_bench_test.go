// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/modes"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/node"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize/rbac"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/resource"
)

// stored is a backend that lists what it holds.
type stored struct {
	resource.Backend
	objects []bootstrap.Object
}

// List lists a kind.
func (s *stored) List(_ context.Context, r schema.GroupResource, _ string) (all []resource.Object, _ error) {
	for _, o := range s.objects {
		if o.Resource == r {
			all = append(all, o.Object)
		}
	}
	return all, nil
}

// BenchmarkAuthorize is what the default chain (Node, RBAC) costs a request over the bootstrap roles and 1,000 bindings of others.
func BenchmarkAuthorize(b *testing.B) {
	s, err := modes.Load(options.Authorization{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	roles := &rbac.Index{}
	if err := roles.Load(b.Context(), listed(b)); err != nil {
		b.Fatal(err)
	}
	c, err := s.Build(modes.Options{Roles: roles, Node: &node.Authorizer{}, Ledger: extension.NewLedger(clock.RealClock{}),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		b.Fatal(err)
	}
	chain := authorize.Chain{authorize.Administrators{}, c}
	account := func(ns, name string) user.Info {
		return &user.DefaultInfo{Name: "system:serviceaccount:" + ns + ":" + name,
			Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + ns, "system:authenticated"}}
	}
	for name, c := range map[string]struct {
		a    authorize.Attributes
		want authorize.Decision
	}{
		"service account, role in its namespace": {authorize.Attributes{User: account("ns7", "worker"), Verb: "create", Version: "v1",
			Resource: "configmaps", Namespace: "ns7", Name: "x", ResourceRequest: true}, authorize.Allow},
		"controller": {authorize.Attributes{User: account("kube-system", "job-controller"), Verb: "create", Version: "v1", Resource: "pods",
			Namespace: "ns7", ResourceRequest: true}, authorize.Allow},
		"administrator": {authorize.Attributes{User: &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}}, Verb: "get",
			Resource: "pods", ResourceRequest: true}, authorize.Allow},
		"nobody": {authorize.Attributes{User: &user.DefaultInfo{Name: "jane", Groups: []string{"devs", "system:authenticated"}}, Verb: "get",
			Resource: "secrets", Namespace: "ns7", ResourceRequest: true}, authorize.NoOpinion},
		"discovery": {authorize.Attributes{User: &user.DefaultInfo{Name: "jane", Groups: []string{"devs", "system:authenticated"}}, Verb: "get",
			Path: "/apis"}, authorize.Allow},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, _, err := chain.Authorize(b.Context(), &c.a); d != c.want || err != nil {
					b.Fatal(d, err)
				}
			}
		})
	}
}

func meta(ns, name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: name} }

func listed(b *testing.B) resource.Backend {
	b.Helper()
	s := &stored{objects: bootstrap.Objects(bootstrap.Options{})}
	for i := range 1000 {
		ns := fmt.Sprint("ns", i)
		s.objects = append(s.objects,
			bootstrap.Object{Resource: rbac.Roles, Object: &rbacv1.Role{ObjectMeta: meta(ns, "work"),
				Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}}},
			bootstrap.Object{Resource: rbac.RoleBindings, Object: &rbacv1.RoleBinding{ObjectMeta: meta(ns, "work"),
				RoleRef:  rbacv1.RoleRef{Kind: "Role", Name: "work"},
				Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "worker"}}}})
	}
	return s
}
