// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// TestAuthorizerIsAskedOnce is number 3 of A11: the authorizer decides each check once per request, however often the
// policies of the request repeat it. The next request checks again.
func TestAuthorizerIsAskedOnce(t *testing.T) {
	v1 := []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }}}
	d := &resource.Descriptor{Resource: "pods", Kind: "Pod", Namespaced: true, Versions: v1, Storage: "v1", Prefix: "pods"}
	var asked []string
	host := &admit.Host{
		Log: slog.New(slog.DiscardHandler), Ledger: extension.NewLedger(clock.RealClock{}),
		Kinds: func() []*resource.Descriptor { return []*resource.Descriptor{d} },
		Kind:  func(schema.GroupResource) *resource.Descriptor { return d },
		Authorize: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = append(asked, a.GetUser().GetName()+" "+a.GetVerb()+" "+a.GetNamespace())
			return authorizer.DecisionAllow, "", nil
		},
		Types: func(*resource.Descriptor) (managedfields.TypeConverter, error) {
			return managedfields.NewDeducedTypeConverter(), nil
		},
	}
	validating, mutating := NewValidating(Options{}), NewMutating(Options{})
	objects := shelf{objects: map[string]resource.Object{"default": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}}
	all := &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{"*"},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}}
	ask := func(namespace string) string {
		return "authorizer.group('').resource('pods').namespace('" + namespace + "').check('create').allowed()"
	}
	for _, name := range []string{"one", "two"} {
		objects.objects["v"+name] = &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "v" + name},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: all, MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "may", Expression: ask("a")}},
				Validations: []admissionregistrationv1.Validation{{Expression: ask("a")}, {Expression: ask("b")},
					{Expression: ask("a") + " && authorizer.serviceAccount('x', 'y').group('').resource('pods').namespace('a').check('create').allowed()"}},
			}}
		objects.objects["m"+name] = &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "m" + name},
			Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints: all, MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "may", Expression: ask("a")}},
				ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
				Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch,
					JSONPatch: &admissionregistrationv1.JSONPatch{
						Expression: ask("b") + ` ? [JSONPatch{op: "add", path: "/metadata/labels/` + name + `", value: "x"}] : []`,
					}}},
			}}
		for kind, p := range map[string]interface {
			admit.Follower
			admit.Hosted
		}{"v": validating, "m": mutating} {
			if name == "one" {
				if err := p.Join(host); err != nil {
					t.Fatal(err)
				}
			}
			var binding resource.Object = &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b" +
				kind + name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: kind + name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			}}
			if kind == "m" {
				binding = &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b" + kind + name},
					Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: kind + name}}
			}
			objects.objects["b"+kind+name] = binding
			for i, what := range []string{kind + name, "b" + kind + name} {
				if err := p.Apply(t.Context(), &feed.Change{Resource: p.Follows()[i], Name: what, Object: objects.objects[what]}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for range 2 {
		asked = nil
		a := &admit.Attributes{Operation: admit.Create, Descriptor: d, Version: "v1", Namespace: "default", Name: "p", Object: pod(),
			Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"},
			Warn: func(string) {}, Annotate: func(string, string) {}}
		a.Object.GetObjectKind().SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		if err := mutating.Mutate(t.Context(), objects, a); err != nil {
			t.Fatal(err)
		}
		if l := a.Object.GetLabels(); l["one"] != "x" || l["two"] != "x" {
			t.Errorf("labels %v", l)
		}
		if diff := cmp.Diff([]string{"u create a", "u create b"}, asked); diff != "" {
			t.Errorf("mutating policies asked: %s", diff)
		}
		asked = nil
		if err := validating.Validate(t.Context(), objects, a); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"u create a", "u create b", "system:serviceaccount:x:y create a"}, asked); diff != "" {
			t.Errorf("validating policies asked: %s", diff)
		}
	}
}

// TestNames checks that a policy has a variable that one of its expressions names.
func TestNames(t *testing.T) {
	const asks, asksNot = "authorizer.path('/x').check('get').allowed()", "object.metadata.name != 'x'"
	for name, c := range map[string]struct {
		spec admissionregistrationv1.ValidatingAdmissionPolicySpec
		want bool
	}{
		"validation": {admissionregistrationv1.ValidatingAdmissionPolicySpec{
			Validations: []admissionregistrationv1.Validation{{Expression: asksNot}, {Expression: asks}}}, true},
		"message": {admissionregistrationv1.ValidatingAdmissionPolicySpec{
			Validations: []admissionregistrationv1.Validation{{Expression: asksNot, MessageExpression: asks}}}, true},
		"variable": {admissionregistrationv1.ValidatingAdmissionPolicySpec{Variables: []admissionregistrationv1.Variable{{Name: "v",
			Expression: asks}}}, true},
		"match condition": {admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: asks}}}, true},
		"audit annotation": {admissionregistrationv1.ValidatingAdmissionPolicySpec{
			AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{Key: "k", ValueExpression: asks}}}, true},
		"requested resource": {admissionregistrationv1.ValidatingAdmissionPolicySpec{
			Validations: []admissionregistrationv1.Validation{{Expression: "authorizer.requestResource.check('get').allowed()"}}}, true},
		"none": {admissionregistrationv1.ValidatingAdmissionPolicySpec{
			Validations:      []admissionregistrationv1.Validation{{Expression: asksNot, MessageExpression: "'no'"}},
			Variables:        []admissionregistrationv1.Variable{{Name: "v", Expression: asksNot}},
			MatchConditions:  []admissionregistrationv1.MatchCondition{{Name: "c", Expression: asksNot}},
			AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{Key: "k", ValueExpression: asksNot}},
		}, false},
	} {
		if got := names(&admissionregistrationv1.ValidatingAdmissionPolicy{Spec: c.spec}, "authorizer"); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
