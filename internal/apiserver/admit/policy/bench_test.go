// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"log/slog"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// shelf is a backend that holds a few objects by name.
type shelf struct {
	resource.Backend
	objects map[string]resource.Object
}

func (s shelf) Get(_ context.Context, _ schema.GroupResource, _, name string) (resource.Object, error) {
	return s.objects[name], nil
}

func pod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", Labels: map[string]string{"team": "a"}}}
	for _, name := range []string{"one", "two"} {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name, Image: "registry.example.com/" + name + ":1"})
	}
	return p
}

// BenchmarkPolicy measures what no policy, one with one expression, and one with three expressions and a message add to
// the create of a pod.
func BenchmarkPolicy(b *testing.B) {
	v1 := []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }}}
	d := &resource.Descriptor{Resource: "pods", Kind: "Pod", Namespaced: true, Versions: v1, Storage: "v1", Prefix: "pods"}
	s := NewValidating(Options{})
	host := &admit.Host{
		Log: slog.New(slog.DiscardHandler), Ledger: extension.NewLedger(clock.RealClock{}),
		Kinds: func() []*resource.Descriptor { return []*resource.Descriptor{d} },
		Kind:  func(schema.GroupResource) *resource.Descriptor { return d },
		Authorize: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		},
	}
	if err := s.Join(host); err != nil {
		b.Fatal(err)
	}
	selector := &metav1.LabelSelector{}
	all := &admissionregistrationv1.MatchResources{NamespaceSelector: selector, ObjectSelector: selector,
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{"*"},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}}
	objects := shelf{objects: map[string]resource.Object{
		"default": &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		"policy": &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "policy"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: all, Validations: []admissionregistrationv1.Validation{
					{Expression: "has(object.metadata.labels) && 'team' in object.metadata.labels",
						MessageExpression: "'no team: ' + object.metadata.name"},
					{Expression: "object.spec.containers.all(c, c.image.startsWith('registry.example.com/'))"},
					{Expression: "!has(object.spec.hostNetwork) || !object.spec.hostNetwork"},
				},
			}},
		"binding": &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "binding"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: "policy", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			}},
	}}
	ask := func(b *testing.B) {
		obj := pod()
		for b.Loop() {
			a := &admit.Attributes{Operation: admit.Create, Descriptor: d, Version: "v1", Namespace: "default", Name: "p", Object: obj,
				Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"},
				Warn: func(string) {}, Annotate: func(string, string) {}}
			if err := s.Validate(b.Context(), objects, a); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("none", ask)
	for name, r := range map[string]schema.GroupResource{"policy": s.policies, "binding": s.bindings} {
		if err := s.Apply(b.Context(), &feed.Change{Resource: r, Name: name, Object: objects.objects[name]}); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("three expressions", ask)
	whole := objects.objects["policy"]
	small := whole.DeepCopyObject().(*admissionregistrationv1.ValidatingAdmissionPolicy)
	small.Spec.Validations = small.Spec.Validations[1:2]
	for _, c := range []struct {
		object resource.Object
		name   string
	}{{small, "one expression"}, {whole, ""}} {
		objects.objects["policy"] = c.object
		if err := s.Apply(b.Context(), &feed.Change{Resource: s.policies, Name: "policy", Object: c.object}); err != nil {
			b.Fatal(err)
		}
		if c.name != "" {
			b.Run(c.name, ask)
		}
	}
	obj := pod()
	obj.Labels = nil
	a := &admit.Attributes{Operation: admit.Create, Descriptor: d, Version: "v1", Namespace: "default", Name: "p", Object: obj,
		Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"}}
	if err := s.Validate(b.Context(), objects, a); err == nil ||
		err.Error() != "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'policy' with binding 'binding' denied request: no team: p" {
		b.Fatalf("the policy says %v", err)
	}
}
