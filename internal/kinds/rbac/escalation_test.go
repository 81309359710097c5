// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rbac

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/resource"
)

func allow(verbs, group, resources string, names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: strings.Split(verbs, ","), APIGroups: []string{group}, Resources: strings.Split(resources, ","),
		ResourceNames: names}
}

func allowURL(url string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{url}}
}

// held is a world in which jane has some rules in the namespace ns, and may do what is listed: "VERB RESOURCE NAMESPACE/NAME".
func held(may []string, rules ...rbacv1.PolicyRule) Authority {
	return Authority{
		Authorize: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			for _, m := range may {
				if a.GetUser().GetName() == "jane" && a.GetAPIGroup() == rbacv1.GroupName && a.IsResourceRequest() &&
					m == a.GetVerb()+" "+a.GetResource()+" "+a.GetNamespace()+"/"+a.GetName() {
					return authorizer.DecisionAllow, "", nil
				}
			}
			return authorizer.DecisionNoOpinion, "", nil
		},
		RulesFor: func(u user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
			if u.GetName() != "jane" || namespace != "ns" && namespace != "" {
				return nil, nil
			}
			return rules, nil
		},
		RulesOf: func(ref rbacv1.RoleRef, _ string) ([]rbacv1.PolicyRule, error) {
			switch ref.Name {
			case "view":
				return []rbacv1.PolicyRule{allow("get,list", "", "pods")}, nil
			case "edit":
				return []rbacv1.PolicyRule{allow("*", "", "*")}, nil
			}
			return nil, apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: "roles"}, ref.Name)
		},
	}
}

// as is the context of a request of a user, which names an object unless it is a create.
func as(t *testing.T, name string, groups []string, object string) context.Context {
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: name, Groups: groups})
	return request.WithRequestInfo(ctx, &request.RequestInfo{Name: object})
}

func role(rules ...rbacv1.PolicyRule) resource.Object {
	return &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}, Rules: rules}
}

func clusterRole(rules ...rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: rules}
}

func binding(kind, name string) resource.Object {
	return &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}}
}

func clusterBinding(name string) resource.Object {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}
}

// TestEscalation has jane write roles and bindings: none may give more than she has, unless she may escalate or bind.
func TestEscalation(t *testing.T) {
	reads, edits, everythingHeld := allow("get,list", "", "pods"), allow("*", "", "*"), everything
	aggregated := clusterRole()
	aggregated.AggregationRule = &rbacv1.AggregationRule{
		ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"a": "b"}}}}
	collected := role(edits).(*rbacv1.Role)
	collected.OwnerReferences, collected.Finalizers = []metav1.OwnerReference{{Name: "o"}}, []string{"f"}
	const more = "is attempting to grant RBAC permissions not currently held"
	for name, c := range map[string]struct {
		has      []rbacv1.PolicyRule
		may      []string
		obj, old resource.Object
		refused  string // empty: it is allowed
	}{
		"a role of one's own rules": {has: []rbacv1.PolicyRule{reads}, obj: role(reads)},
		"a part of them":            {has: []rbacv1.PolicyRule{reads}, obj: role(allow("get", "", "pods"))},
		"a role with none":          {obj: role()},
		"another verb": {has: []rbacv1.PolicyRule{reads}, obj: role(allow("get,delete", "", "pods")),
			refused: `Verbs:["delete"]`},
		"another resource": {has: []rbacv1.PolicyRule{reads}, obj: role(allow("get", "", "pods,secrets")),
			refused: `Resources:["secrets"]`},
		"a subresource": {has: []rbacv1.PolicyRule{reads}, obj: role(allow("get", "", "pods/exec")),
			refused: `Resources:["pods/exec"]`},
		"another group": {has: []rbacv1.PolicyRule{reads}, obj: role(allow("get", "apps", "pods")),
			refused: `APIGroups:["apps"]`},
		"every verb":      {has: []rbacv1.PolicyRule{reads}, obj: role(allow("*", "", "pods")), refused: `Verbs:["*"]`},
		"every resource":  {has: []rbacv1.PolicyRule{reads}, obj: role(allow("get", "", "*")), refused: `Resources:["*"]`},
		"one name of all": {has: []rbacv1.PolicyRule{reads}, obj: role(allow("get", "", "pods", "p"))},
		"all of one name": {has: []rbacv1.PolicyRule{allow("get", "", "pods", "p")}, obj: role(allow("get", "", "pods")),
			refused: more},
		"another name": {has: []rbacv1.PolicyRule{allow("get", "", "pods", "p")},
			obj: role(allow("get", "", "pods", "q")), refused: `ResourceNames:["q"]`},
		"a role that has more and gets it again":         {obj: role(edits, reads), old: role(edits), refused: more},
		"an update that takes nothing and gives nothing": {obj: role(edits), old: role(edits)},
		"owners and finalizers alone":                    {obj: collected, old: role(edits)},
		"a create where escalate is allowed":             {may: []string{"escalate roles ns/"}, obj: role(edits)},
		"escalate of cluster roles": {may: []string{"escalate clusterroles ns/", "escalate clusterroles /"},
			obj: role(edits), refused: more},
		"escalate of roles":                 {may: []string{"escalate roles ns/", "escalate roles /"}, obj: clusterRole(edits), refused: more},
		"bind is not escalate":              {may: []string{"bind roles ns/r", "bind roles ns/"}, obj: role(edits), refused: more},
		"a cluster role of one's own rules": {has: []rbacv1.PolicyRule{reads}, obj: clusterRole(reads)},
		"a cluster role with more":          {has: []rbacv1.PolicyRule{reads}, obj: clusterRole(edits), refused: more},
		"a URL":                             {has: []rbacv1.PolicyRule{allowURL("/healthz")}, obj: clusterRole(allowURL("/healthz"))},
		"another URL": {has: []rbacv1.PolicyRule{allowURL("/healthz")}, obj: clusterRole(allowURL("/metrics")),
			refused: `NonResourceURLs:["/metrics"]`},
		"every URL": {has: []rbacv1.PolicyRule{allowURL("/healthz"), edits}, obj: clusterRole(allowURL("/*")),
			refused: more},
		"a URL below a star": {has: []rbacv1.PolicyRule{allowURL("/logs/*")}, obj: clusterRole(allowURL("/logs/a"))},
		"aggregation": {has: []rbacv1.PolicyRule{edits}, obj: aggregated,
			refused: "must have cluster-admin privileges to use the aggregationRule"},
		"aggregation by who has everything": {has: everythingHeld, obj: aggregated},
		"aggregation with escalate":         {may: []string{"escalate clusterroles /"}, obj: aggregated},
		"aggregation taken away":            {has: []rbacv1.PolicyRule{edits}, obj: clusterRole(), old: aggregated, refused: "aggregationRule"},

		"a binding to less":                     {has: []rbacv1.PolicyRule{reads}, obj: binding("Role", "view")},
		"a binding to more":                     {has: []rbacv1.PolicyRule{reads}, obj: binding("Role", "edit"), refused: more},
		"a binding to a cluster role with more": {has: []rbacv1.PolicyRule{reads}, obj: binding("ClusterRole", "edit"), refused: more},
		"bind":                                  {may: []string{"bind roles ns/edit"}, obj: binding("Role", "edit")},
		"bind of another":                       {may: []string{"bind roles ns/view"}, obj: binding("Role", "edit"), refused: more},
		"bind of a role of that name":           {may: []string{"bind roles ns/edit"}, obj: binding("ClusterRole", "edit"), refused: more},
		"bind of a cluster role":                {may: []string{"bind clusterroles ns/edit"}, obj: binding("ClusterRole", "edit")},
		"escalate is not bind": {may: []string{"escalate roles ns/edit", "escalate roles ns/"},
			obj: binding("Role", "edit"), refused: more},
		"a binding to what is not there": {has: everythingHeld, obj: binding("Role", "none"),
			refused: `rolebindings.rbac.authorization.k8s.io "none" not found`},
		"a binding that stays":                      {obj: binding("Role", "edit"), old: binding("Role", "edit")},
		"a binding to another role":                 {obj: binding("Role", "edit"), old: binding("Role", "view"), refused: more},
		"a cluster binding to less":                 {has: []rbacv1.PolicyRule{reads}, obj: clusterBinding("view")},
		"a cluster binding to more":                 {has: []rbacv1.PolicyRule{reads}, obj: clusterBinding("edit"), refused: more},
		"a cluster binding, bound in the namespace": {may: []string{"bind clusterroles ns/edit"}, obj: clusterBinding("edit"), refused: more},
		"a cluster binding, bound in the cluster":   {may: []string{"bind clusterroles /edit"}, obj: clusterBinding("edit")},
		"a cluster binding to what is not there": {has: everythingHeld, obj: clusterBinding("none"),
			refused: `clusterrolebindings.rbac.authorization.k8s.io "none" not found`},
		"a kind of role that there is none of, bind": {may: []string{"bind users ns/edit"}, obj: binding("User", "edit"), refused: more},
	} {
		t.Run(name, func(t *testing.T) {
			object := ""
			if c.old != nil {
				object = c.obj.GetName()
			}
			err := authorizes(t, held(c.may, c.has...), c.obj)(as(t, "jane", []string{"staff"}, object), c.obj, c.old)
			switch {
			case c.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("%v, want %q", err, c.refused)
			case strings.Contains(c.refused, "not found") != apierrors.IsNotFound(err) || c.refused != "" && !apierrors.IsNotFound(err) &&
				!apierrors.IsForbidden(err):
				t.Errorf("refused as %s", apierrors.ReasonForError(err))
			}
		})
	}
}

// TestEscalationIsOfUsers lets through whom nothing bounds, and nobody by a name alone.
func TestEscalationIsOfUsers(t *testing.T) {
	a := held(nil)
	for _, obj := range []resource.Object{role(everything...), clusterRole(everything...), binding("Role", "edit"), clusterBinding("edit")} {
		check := authorizes(t, a, obj)
		if err := check(as(t, "admin", []string{user.SystemPrivilegedGroup}, ""), obj, nil); err != nil {
			t.Errorf("%T: an administrator is refused: %v", obj, err)
		}
		if err := check(t.Context(), obj, nil); err != nil {
			t.Errorf("%T: the server itself is refused: %v", obj, err)
		}
		for _, name := range []string{user.SystemPrivilegedGroup, "kubernetes-admin", ""} {
			if err := check(as(t, name, nil, ""), obj, nil); !apierrors.IsForbidden(err) {
				t.Errorf("%T: user %q: %v", obj, name, err)
			}
		}
		if err := authorizes(t, Authority{}, obj)(as(t, "jane", nil, ""), obj, nil); err != nil {
			t.Errorf("%T: refused where nobody is bounded: %v", obj, err)
		}
	}
}

// TestEscalateOfOneName asks about the role that an update names.
func TestEscalateOfOneName(t *testing.T) {
	a := held([]string{"escalate roles ns/r"})
	obj := role(everything...)
	if err := authorizes(t, a, obj)(as(t, "jane", nil, "r"), obj, role()); err != nil {
		t.Errorf("an update is refused: %v", err)
	}
	if err := authorizes(t, a, obj)(as(t, "jane", nil, ""), obj, nil); !apierrors.IsForbidden(err) {
		t.Errorf("a create, which has no name: %v", err)
	}
}

// authorizes is the check of an object's kind.
func authorizes(t *testing.T, a Authority, obj resource.Object) func(ctx context.Context, obj, old resource.Object) error {
	t.Helper()
	switch obj.(type) {
	case *rbacv1.Role:
		return Role(a).Strategy.Authorize
	case *rbacv1.ClusterRole:
		return ClusterRole(a).Strategy.Authorize
	case *rbacv1.RoleBinding:
		return RoleBinding(a).Strategy.Authorize
	case *rbacv1.ClusterRoleBinding:
		return ClusterRoleBinding(a).Strategy.Authorize
	}
	t.Fatalf("%T is of no kind here", obj)
	return nil
}
