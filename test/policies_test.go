// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// policies registers policies.
type policies struct {
	kubernetes.Interface
	config *rest.Config
	heard  *warned
}

func namedRules(rs []admissionregistrationv1.RuleWithOperations) []admissionregistrationv1.NamedRuleWithOperations {
	var out []admissionregistrationv1.NamedRuleWithOperations
	for _, r := range rs {
		out = append(out, admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: r})
	}
	return out
}

// validate registers a policy on config maps of a namespace, with a binding, until the test ends.
func (p *policies) validate(t *testing.T, ns string, spec admissionregistrationv1.ValidatingAdmissionPolicySpec,
	binding admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec) {
	t.Helper()
	name := "p-" + ns
	if spec.MatchConstraints == nil {
		spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("", "v1", "configmaps")),
			NamespaceSelector: in(ns)}
	}
	if binding.PolicyName = name; binding.ValidationActions == nil {
		binding.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	}
	c := p.AdmissionregistrationV1()
	if _, err := c.ValidatingAdmissionPolicies().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ValidatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: binding},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := c.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := c.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// mutate does the same for a mutating policy.
func (p *policies) mutate(t *testing.T, ns string, spec admissionregistrationv1.MutatingAdmissionPolicySpec) {
	t.Helper()
	name := "m-" + ns
	if spec.MatchConstraints == nil {
		spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("", "v1", "configmaps")),
			NamespaceSelector: in(ns)}
	}
	if spec.ReinvocationPolicy == "" {
		spec.ReinvocationPolicy = admissionregistrationv1.NeverReinvocationPolicy
	}
	c := p.AdmissionregistrationV1()
	if _, err := c.MutatingAdmissionPolicies().Create(t.Context(),
		&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MutatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := c.MutatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := c.MutatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func (p *policies) create(t *testing.T, ns, name string) (*corev1.ConfigMap, error) {
	t.Helper()
	return p.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(name), metav1.CreateOptions{})
}

// allowed creates a config map; denied tries, and compares the reason.
func (p *policies) allowed(t *testing.T, ns, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := p.create(t, ns, name)
	if err != nil {
		t.Fatal(err)
	}
	return cm
}

func (p *policies) denied(t *testing.T, ns, name, want string) {
	t.Helper()
	_, err := p.create(t, ns, name)
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("want a refusal with %q, got %v", want, err)
	}
}

func validations(expressions ...string) []admissionregistrationv1.Validation {
	var out []admissionregistrationv1.Validation
	for _, e := range expressions {
		out = append(out, admissionregistrationv1.Validation{Expression: e})
	}
	return out
}

// TestPolicies goes through what policies are easily got wrong in, as numbered for extension point A11.
func TestPolicies(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
	heard := &warned{}
	config := rest.CopyConfig(cluster.Config())
	config.WarningHandler = heard
	p := &policies{kubernetes.NewForConfigOrDie(config), config, heard}
	type vspec = admissionregistrationv1.ValidatingAdmissionPolicySpec
	type vbind = admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec
	params := &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	for _, c := range []struct {
		name string
		test func(t *testing.T, ns string)
	}{
		{"01 variables are evaluated when needed, once", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{
				Variables: []admissionregistrationv1.Variable{{Name: "broken", Expression: "object.nothing"},
					{Name: "size", Expression: "size(object.data)"}},
				Validations: validations("true || variables.broken == 1", "variables.size == 1 && variables.size + 1 == 2"),
			}, vbind{})
			p.allowed(t, ns, "x")
		}},
		{"02 the namespace's object", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(append(rules("", "v1", "configmaps", "CREATE"),
					rules("", "v1", "namespaces", "UPDATE")...)), NamespaceSelector: in(ns)},
				Validations: validations("(namespaceObject == null) == (request.kind.kind == 'Namespace')",
					"namespaceObject == null || namespaceObject.metadata.name == request.namespace"),
			}, vbind{})
			p.allowed(t, ns, "x")
			space, err := p.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			space.Labels["x"] = "y"
			if _, err := p.CoreV1().Namespaces().Update(t.Context(), space, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}},
		{"03 who may do what", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{Validations: validations(
				"authorizer.group('').resource('configmaps').namespace(request.namespace).check('create').allowed()",
				"authorizer.requestResource.check('create').allowed()",
				"!authorizer.serviceAccount(request.namespace, 'nobody').group('').resource('configmaps').check('create').allowed()",
			)}, vbind{})
			p.allowed(t, ns, "x")
		}},
		{"04 object and oldObject", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{Validations: validations("(object == null) == (request.operation == 'DELETE')",
				"(oldObject == null) == (request.operation == 'CREATE')")}, vbind{})
			cm := p.allowed(t, ns, "x")
			cm.Data["a"] = "c"
			if _, err := p.CoreV1().ConfigMaps(ns).Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
			if err := p.CoreV1().ConfigMaps(ns).Delete(t.Context(), "x", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}},
		{"05 a policy that is wrong denies what it matches", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{
				ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Nothing"}, Validations: validations("params.x == 1"),
			}, vbind{ParamRef: &admissionregistrationv1.ParamRef{Name: "x", ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)}})
			p.denied(t, ns, "x", "ValidatingAdmissionPolicy 'p-"+ns+
				"' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=Nothing'")
			p.allowed(t, "default", "x"+ns)
		}},
		{"06 the binding must match as well", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{Validations: validations("false")},
				vbind{MatchResources: &admissionregistrationv1.MatchResources{
					ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}}}})
			p.allowed(t, ns, "x")
		}},
		{"06 no parameters, no evaluation", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{ParamKind: params, Validations: validations("false")},
				vbind{ParamRef: &admissionregistrationv1.ParamRef{Name: "none", ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction)}})
			p.allowed(t, ns, "x")
		}},
		{"07 where parameters are looked for", func(t *testing.T, ns string) {
			p.allowed(t, ns, "rules")
			p.validate(t, ns, vspec{
				ParamKind: params, Validations: validations(
					"params.metadata.namespace == request.namespace && params.kind == 'ConfigMap' && params.data.a == 'b'"),
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(append(rules("", "v1", "configmaps"),
					rules("", "v1", "nodes")...)), NamespaceSelector: in(ns)},
			}, vbind{ParamRef: &admissionregistrationv1.ParamRef{Name: "rules",
				ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)}})
			p.allowed(t, ns, "x")
			_, err := p.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(),
				"failed to configure binding: cannot use namespaced paramRef in policy binding that matches cluster-scoped resources") {
				t.Errorf("created a node: %v", err)
			}
		}},
		{"08 definition, policy, binding and parameters of one second", p.definitionOfNow},
		{"08b a mutation of a definition that was made, or grew, a moment ago", p.definitionThatGrows},
		{"09 policies are not about themselves", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(
					append(rules("admissionregistration.k8s.io", "*", "*"), rules("authorization.k8s.io", "*", "*")...))},
				Validations: validations("request.resource.resource == 'nothing'"),
				MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "policies",
					Expression: "!request.resource.resource.contains('webhook')"}},
			}, vbind{}) // that it can be taken away again is the test
			p.allowed(t, ns, "x")
		}},
		{"09b nor about any kind of policy, nor reviews; about webhooks they are", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(never())},
				Validations:      validations("request.resource.resource.contains('webhook') && request.name != 'seen'"),
			}, vbind{})
			exempt(t, p.Interface)
			_, err := p.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
				&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'p-"+ns+"'") {
				t.Errorf("a webhook configuration that the policy is about: %v", err)
			}
		}},
		{"10 verdicts: deny, warn, audit", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{Validations: []admissionregistrationv1.Validation{
				{Expression: "false", MessageExpression: "'no ' + object.metadata.name"}, {Expression: "object.data.a == 'b'"},
			}}, vbind{ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn, admissionregistrationv1.Audit}})
			heard.said = nil
			p.allowed(t, ns, "x")
			if want := fmt.Sprintf("Validation failed for ValidatingAdmissionPolicy 'p-%s' with binding 'p-%s': no x", ns,
				ns); !slices.Contains(heard.said, want) || len(heard.said) != 1 {
				t.Errorf("heard %q", heard.said)
			}
		}},
		{"11 cost", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{
				Variables:   []admissionregistrationv1.Variable{{Name: "many", Expression: "[1,2,3,4,5,6,7,8,9,10]"}},
				Validations: validations("variables.many.all(a, variables.many.all(b, variables.many.all(c, variables.many.all(d, variables.many.all(e, variables.many.all(f, variables.many.all(g, a + b + c + d + e + f + g > 0)))))))"),
			}, vbind{})
			p.denied(t, ns, "x", "actual cost limit exceeded")
			metrics, err := p.CoreV1().RESTClient().Get().AbsPath("/metrics").Do(t.Context()).Raw()
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf(`apiserver_validating_admission_policy_check_total{enforcement_action="deny",error_type="invalid_error",policy="p-%s",policy_binding="p-%s"} 1`, ns, ns)
			if !strings.Contains(string(metrics), want) {
				t.Errorf("/metrics lacks %s", want)
			}
		}},
		{"11b the cost of asking who may do what", p.authorizerCost},
		{"12 reasons", func(t *testing.T, ns string) {
			p.validate(t, ns, vspec{Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "too much",
				Reason: ptr.To(metav1.StatusReasonRequestEntityTooLarge)}}}, vbind{})
			_, err := p.create(t, ns, "x")
			if !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "denied request: too much") {
				t.Errorf("refused with %v", err)
			}
		}},
		{"13 a mutation merges", func(t *testing.T, ns string) {
			p.mutate(t, ns, admissionregistrationv1.MutatingAdmissionPolicySpec{Mutations: []admissionregistrationv1.Mutation{
				{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: "Object{data: {'one': '1'}}"}},
				{PatchType: admissionregistrationv1.PatchTypeJSONPatch,
					JSONPatch: &admissionregistrationv1.JSONPatch{Expression: "[JSONPatch{op: 'add', path: '/data/two', value: object.data.one + '1'}]"}},
				{PatchType: admissionregistrationv1.PatchTypeJSONPatch,
					JSONPatch: &admissionregistrationv1.JSONPatch{
						Expression: "[JSONPatch{op: 'test', path: '/data/a', value: 'z'}, JSONPatch{op: 'remove', path: '/data/a'}]"}},
			}})
			if cm := p.allowed(t, ns, "x"); cm.Data["one"] != "1" || cm.Data["two"] != "11" || cm.Data["a"] != "b" {
				t.Errorf("data %v", cm.Data)
			}
		}},
		{"14 a mutation of what is atomic is refused", func(t *testing.T, ns string) {
			p.mutate(t, ns, admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("", "v1", "services")),
					NamespaceSelector: in(ns)},
				Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: "Object{spec: Object.spec{selector: {'a': 'b'}}}"}}},
			})
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
			if _, err := p.CoreV1().Services(ns).Create(t.Context(), s, metav1.CreateOptions{}); err == nil ||
				!strings.Contains(err.Error(), "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector") {
				t.Errorf("created: %v", err)
			}
		}},
		{"15 a mutation into another kind is refused", p.anotherKind},
	} {
		ns := "a" + strings.Fields(c.name)[0] + fmt.Sprint(len(c.name))
		t.Run(c.name, func(t *testing.T) {
			if _, err := p.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			c.test(t, ns)
		})
	}
}

// definitionOfNow makes a definition, an object of it, a policy that takes it as its parameters, and the binding; the next
// request meets them all. So does a mutating policy on objects of the definition.
func (p *policies) definitionOfNow(t *testing.T, ns string) {
	open := &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	def := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "limits.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "limits", Kind: "Limit", ListKind: "LimitList", Singular: "limit"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object",
						Properties: map[string]apiextensionsv1.JSONSchemaProps{"max": {Type: "integer"}, "note": {Type: "string"}}}, "more": *open},
				}}}},
		},
	}
	if _, err := apiextensions.NewForConfigOrDie(p.config).ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), def,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	limits := dynamic.NewForConfigOrDie(p.config).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
		Resource: "limits"}).Namespace(ns)
	p.mutate(t, ns, admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("example.com", "v1", "limits"))},
		Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: "Object{spec: Object.spec{note: 'mutated'}}"}}},
	})
	limit, err := limits.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Limit",
		"metadata": map[string]any{"name": "l"}, "spec": map[string]any{"max": int64(0)}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if note, _, _ := unstructured.NestedString(limit.Object, "spec", "note"); note != "mutated" {
		t.Errorf("limit %v", limit.Object)
	}
	p.validate(t, ns, admissionregistrationv1.ValidatingAdmissionPolicySpec{
		ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Limit"},
		Validations: []admissionregistrationv1.Validation{{Expression: "size(object.data) <= params.spec.max",
			MessageExpression: "'at most ' + string(params.spec.max)"}},
	}, admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{ParamRef: &admissionregistrationv1.ParamRef{Name: "l",
		ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)}})
	p.denied(t, ns, "x", "denied request: at most 0")
	limit.Object["spec"] = map[string]any{"max": int64(5)}
	if _, err := limits.Update(t.Context(), limit, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.allowed(t, ns, "x")
}
