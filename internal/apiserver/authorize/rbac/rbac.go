// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package rbac authorizes requests by the roles and bindings of the group rbac.authorization.k8s.io.
//
// An [Index] follows the four kinds. The server's feed applies each change before the write is answered, so that a
// binding is in force for the next request. The index maps each subject to its grants. A request costs one look-up for
// its user and one for each group, in the cluster and in the namespace, and takes no lock.
package rbac

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// The kinds that an index follows.
var (
	Roles               = schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}
	ClusterRoles        = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}
	RoleBindings        = schema.GroupResource{Group: rbacv1.GroupName, Resource: "rolebindings"}
	ClusterRoleBindings = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrolebindings"}
)

// Kinds returns these kinds, roles before the bindings that refer to them.
func Kinds() []schema.GroupResource {
	return []schema.GroupResource{ClusterRoles, Roles, ClusterRoleBindings, RoleBindings}
}

// Index maps subjects to roles and bindings. The zero value is an empty index.
type Index struct {
	roles  sync.Map // roleKey → []rbacv1.PolicyRule
	grants sync.Map // subjectKey → []*grant, replaced as a whole

	mu       sync.Mutex              // held by writers
	bindings map[bindingKey]*binding // the bindings in grants
}

// roleKey names a role; without a namespace, a cluster role.
type roleKey struct{ namespace, name string }

// bindingKey names a binding; without a namespace, a cluster role binding.
type bindingKey struct{ namespace, name string }

// subjectKey is a user or group, in a namespace or, without one, in the cluster.
type subjectKey struct {
	namespace string
	group     bool
	name      string
}

type binding struct {
	key      bindingKey
	role     rbacv1.RoleRef
	subjects []rbacv1.Subject
}

// grant is what a binding grants to one of its subjects.
type grant struct {
	*binding
	subject int // its index among the binding's subjects
	reason  string
}

// Load replaces the contents with what is stored.
func (x *Index) Load(ctx context.Context, stored feed.Lister) error {
	roles, bindings := map[roleKey]bool{}, map[bindingKey]bool{}
	for _, r := range Kinds() {
		objs, err := stored.List(ctx, r, "")
		if err != nil {
			return err
		}
		x.mu.Lock()
		for _, obj := range objs {
			x.set(r, obj.GetNamespace(), obj.GetName(), obj)
			if r == Roles || r == ClusterRoles {
				roles[roleKey{obj.GetNamespace(), obj.GetName()}] = true
			} else {
				bindings[bindingKey{obj.GetNamespace(), obj.GetName()}] = true
			}
		}
		x.mu.Unlock()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.roles.Range(func(key, _ any) bool {
		if !roles[key.(roleKey)] {
			x.roles.Delete(key)
		}
		return true
	})
	for key := range x.bindings {
		if !bindings[key] {
			x.bind(key, nil)
		}
	}
	return nil
}

// Apply applies a change of a role or binding.
func (x *Index) Apply(_ context.Context, c *feed.Change) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.set(c.Resource, c.Namespace, c.Name, c.Object)
	return nil
}

// set replaces the state of an object; nil removes it. The caller holds mu.
func (x *Index) set(r schema.GroupResource, namespace, name string, obj resource.Object) {
	switch r {
	case Roles, ClusterRoles:
		switch o := obj.(type) {
		case *rbacv1.Role:
			x.roles.Store(roleKey{namespace, name}, o.Rules)
		case *rbacv1.ClusterRole:
			x.roles.Store(roleKey{"", name}, o.Rules)
		default:
			x.roles.Delete(roleKey{namespace, name})
		}
	case RoleBindings, ClusterRoleBindings:
		switch o := obj.(type) {
		case *rbacv1.RoleBinding:
			x.bind(bindingKey{namespace, name}, &binding{role: o.RoleRef, subjects: o.Subjects})
		case *rbacv1.ClusterRoleBinding:
			x.bind(bindingKey{"", name}, &binding{role: o.RoleRef, subjects: o.Subjects})
		default:
			x.bind(bindingKey{namespace, name}, nil)
		}
	}
}

func (x *Index) bind(key bindingKey, b *binding) {
	if x.bindings == nil {
		x.bindings = map[bindingKey]*binding{}
	}
	if old := x.bindings[key]; old != nil {
		for _, s := range old.subjects {
			if at, ok := subject(s, key.namespace); ok {
				x.change(at, func(gs []*grant) []*grant {
					return slices.DeleteFunc(gs, func(g *grant) bool { return g.binding == old })
				})
			}
		}
		delete(x.bindings, key)
	}
	if b == nil {
		return
	}
	b.key = key
	x.bindings[key] = b
	for i, s := range b.subjects {
		if at, ok := subject(s, key.namespace); ok {
			x.change(at, func(gs []*grant) []*grant {
				return append(gs, &grant{binding: b, subject: i, reason: b.reason(i)})
			})
		}
	}
}

// change replaces a subject's grants with the result of f on a copy.
func (x *Index) change(at subjectKey, f func([]*grant) []*grant) {
	var old []*grant
	if v, ok := x.grants.Load(at); ok {
		old = v.([]*grant)
	}
	if gs := f(slices.Clone(old)); len(gs) > 0 {
		x.grants.Store(at, gs)
	} else {
		x.grants.Delete(at)
	}
}

// subject returns the key of a binding's subject; false if no user can match it.
func subject(s rbacv1.Subject, namespace string) (subjectKey, bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subjectKey{namespace: namespace, name: s.Name}, true
	case rbacv1.GroupKind:
		return subjectKey{namespace: namespace, group: true, name: s.Name}, true
	case rbacv1.ServiceAccountKind:
		of := cmp.Or(s.Namespace, namespace)
		return subjectKey{namespace: namespace, name: serviceaccount.MakeUsername(of, s.Name)}, of != ""
	}
	return subjectKey{}, false
}

// reason describes the grant to the binding's subject i, in kube-apiserver's words.
func (b *binding) reason(i int) string {
	kind, name := "ClusterRoleBinding", b.key.name
	if b.key.namespace != "" {
		kind, name = "RoleBinding", b.key.name+"/"+b.key.namespace
	}
	s := b.subjects[i]
	who := s.Name
	if s.Kind == rbacv1.ServiceAccountKind {
		who += "/" + cmp.Or(s.Namespace, b.key.namespace)
	}
	return fmt.Sprintf("RBAC: allowed by %s %q of %s %q to %s %q", kind, name, b.role.Kind, b.role.Name, s.Kind, who)
}

// Authorize allows a request if a rule of a role that is bound to the user allows it. Otherwise it has no opinion.
func (x *Index) Authorize(_ context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
	combined := a.Resource
	if a.Subresource != "" {
		combined += "/" + a.Subresource
	}
	var allowed *grant
	missing := false
	x.visit(a.User, a.Namespace, func(g *grant) bool {
		if allowed != nil { // an earlier subject of the same binding may match too
			if g.binding == allowed.binding && g.subject < allowed.subject {
				allowed = g
			}
			return true
		}
		rules, ok := x.rules(g.binding)
		if !ok {
			missing = true
			return true
		}
		for i := range rules {
			if allows(&rules[i], a, combined) {
				allowed = g
				return len(g.subjects) > 1
			}
		}
		return true
	})
	if allowed != nil {
		return authorize.Allow, allowed.reason, nil
	}
	if missing {
		if _, err := x.RulesFor(a.User, a.Namespace); err != nil {
			return authorize.NoOpinion, fmt.Sprintf("RBAC: %v", err), nil
		}
	}
	return authorize.NoOpinion, "", nil
}

// visit calls f with each grant of a user in the cluster, and in namespace if there is one, until f returns false.
func (x *Index) visit(u user.Info, namespace string, f func(*grant) bool) {
	if u == nil {
		return
	}
	if !x.visitIn("", u, f) || namespace == "" {
		return
	}
	x.visitIn(namespace, u, f)
}

func (x *Index) visitIn(namespace string, u user.Info, f func(*grant) bool) bool {
	if v, ok := x.grants.Load(subjectKey{namespace: namespace, name: u.GetName()}); ok {
		for _, g := range v.([]*grant) {
			if !f(g) {
				return false
			}
		}
	}
	for _, name := range u.GetGroups() {
		v, ok := x.grants.Load(subjectKey{namespace: namespace, group: true, name: name})
		if !ok {
			continue
		}
		for _, g := range v.([]*grant) {
			if !f(g) {
				return false
			}
		}
	}
	return true
}

// rules returns the rules of the binding's role; false if the role does not exist.
func (x *Index) rules(b *binding) ([]rbacv1.PolicyRule, bool) {
	key := roleKey{name: b.role.Name}
	if b.role.Kind == "Role" {
		key.namespace = b.key.namespace
	}
	v, ok := x.roles.Load(key)
	if !ok {
		return nil, false
	}
	return v.([]rbacv1.PolicyRule), true
}

// Name implements [authorize.Named].
func (*Index) Name() string { return "rbac" }

// Review returns the result of RulesFor as a rules review.
func (x *Index) Review(_ context.Context, u user.Info, namespace string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule,
	bool, error) {
	rules, err := x.RulesFor(u, namespace)
	var resources []authorizationv1.ResourceRule
	var paths []authorizationv1.NonResourceRule
	for _, r := range rules {
		if len(r.Resources) > 0 {
			resources = append(resources, authorizationv1.ResourceRule{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources,
				ResourceNames: r.ResourceNames})
		}
		if len(r.NonResourceURLs) > 0 {
			paths = append(paths, authorizationv1.NonResourceRule{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})
		}
	}
	return resources, paths, false, err
}

// RulesFor returns all rules that apply to a user in a namespace (without one: in the cluster only), sorted by the
// names of their bindings. If roles do not exist, it returns the other rules and an error that names those roles.
func (x *Index) RulesFor(u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	seen := map[*binding]bool{}
	var all []*binding
	x.visit(u, namespace, func(g *grant) bool {
		if !seen[g.binding] {
			seen[g.binding] = true
			all = append(all, g.binding)
		}
		return true
	})
	slices.SortFunc(all, func(a, b *binding) int {
		return cmp.Or(strings.Compare(a.key.namespace, b.key.namespace), strings.Compare(a.key.name, b.key.name))
	})
	var rules []rbacv1.PolicyRule
	var errs []error
	for _, b := range all {
		rs, err := x.RulesOf(b.role, b.key.namespace)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rules = append(rules, rs...)
	}
	return rules, utilerrors.NewAggregate(errs)
}

// RulesOf returns the rules of the role that a binding in namespace refers to, or an API error if it does not exist.
func (x *Index) RulesOf(ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	if ref.Kind != "Role" && ref.Kind != "ClusterRole" {
		return nil, fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
	}
	b := &binding{key: bindingKey{namespace: namespace}, role: ref}
	if rules, ok := x.rules(b); ok {
		return rules, nil
	}
	// upstream's error contains the kind here, not the resource
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: strings.ToLower(ref.Kind)}, ref.Name)
}

// Allow reports whether a rule allows a request.
func Allow(rules []rbacv1.PolicyRule, a *authorize.Attributes) bool {
	combined := a.Resource
	if a.Subresource != "" {
		combined += "/" + a.Subresource
	}
	return slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return allows(&r, a, combined) })
}

// allows reports whether a rule holds for a request; combined is its resource with its subresource.
func allows(r *rbacv1.PolicyRule, a *authorize.Attributes, combined string) bool {
	if !has(r.Verbs, a.Verb) {
		return false
	}
	if !a.ResourceRequest {
		return slices.ContainsFunc(r.NonResourceURLs, func(u string) bool {
			return u == "*" || u == a.Path || strings.HasSuffix(u, "*") && strings.HasPrefix(a.Path, strings.TrimRight(u, "*"))
		})
	}
	return has(r.APIGroups, a.Group) && resourceMatches(r.Resources, combined, a.Subresource) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, a.Name))
}

// has reports whether a list contains s or the wildcard.
func has(list []string, s string) bool {
	for _, e := range list {
		if e == "*" || e == s {
			return true
		}
	}
	return false
}

func resourceMatches(list []string, combined, subresource string) bool {
	for _, e := range list {
		if e == "*" || e == combined {
			return true
		}
		if subresource != "" && len(e) == len(subresource)+2 && e[:2] == "*/" && e[2:] == subresource {
			return true
		}
	}
	return false
}
