// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

// stored starts a server that finds objects in its store which its API would not take, as one of another version left them.
func stored(t *testing.T, objects map[string]runtime.Object) *embed.Server {
	t.Helper()
	dir := t.TempDir()
	first := &embed.Server{DataDir: dir, Controllers: []string{"none"}} // lays out the directory
	if err := first.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	e, err := local.Open(filepath.Join(dir, "store"), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(e)
	for key, obj := range objects {
		var b bytes.Buffer
		if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(obj, &b); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Create(t.Context(), "/registry/"+key, b.Bytes(), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return embedtest.Start(t, &embed.Server{DataDir: dir, Controllers: []string{"none"}})
}

// TestStoredExpressions is number 10 of A11: a new expression may use what the release before has as well, so that one can go back to
// it; one that is stored is understood with all that this release has, and may be written again as it is.
func TestStoredExpressions(t *testing.T) {
	const newer = `[object.data.a].includes("b")` // of 1.37
	meta := metav1.ObjectMeta{Name: "newer", UID: "11111111-1111-1111-1111-111111111111", Generation: 1,
		CreationTimestamp: metav1.Unix(1600000000, 0)}
	of := func(label string) *admissionregistrationv1.MatchResources {
		return &admissionregistrationv1.MatchResources{
			ResourceRules:     namedRules(rules("", "v1", "configmaps", admissionregistrationv1.Create)),
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"for": label}},
			MatchPolicy: ptr.To(admissionregistrationv1.Equivalent),
		}
	}
	fail := ptr.To(admissionregistrationv1.Fail)
	validating := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: fail, MatchConstraints: of("validating"),
			Validations: []admissionregistrationv1.Validation{{Expression: newer, Message: "only b"}},
		}}
	mutating := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
		FailurePolicy: fail, MatchConstraints: of("mutating"), ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
		Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
			ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
				Expression: `Object{data: {"found": string(` + newer + `)}}`,
			}}},
	}}
	var hook admissionregistrationv1.ValidatingWebhook
	nobody := freePort(t)
	hook.Name, hook.ClientConfig.URL, hook.Rules = "newer.example.com", ptr.To("https://"+nobody),
		rules("", "v1", "configmaps", admissionregistrationv1.Create)
	hook.Rules[0].Scope, hook.SideEffects, hook.AdmissionReviewVersions = ptr.To(admissionregistrationv1.AllScopes),
		ptr.To(admissionregistrationv1.SideEffectClassNone), []string{"v1"}
	hook.NamespaceSelector, hook.ObjectSelector, hook.MatchPolicy = &metav1.LabelSelector{}, of("webhook").ObjectSelector, of("").MatchPolicy
	hook.FailurePolicy, hook.TimeoutSeconds, hook.MatchConditions = fail, ptr.To(int32(10)),
		[]admissionregistrationv1.MatchCondition{{Name: "newer", Expression: newer}}
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta,
		Webhooks: []admissionregistrationv1.ValidatingWebhook{hook}}
	client := kubernetes.NewForConfigOrDie(stored(t, map[string]runtime.Object{
		"validatingadmissionpolicies/newer": validating, "mutatingadmissionpolicies/newer": mutating,
		"validatingwebhookconfigurations/newer": webhook,
	}).Config())
	api := client.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "newer"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "newer",
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.MutatingAdmissionPolicyBindings().Create(t.Context(),
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "newer"},
			Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "newer"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	try := func(label, a string) (*corev1.ConfigMap, error) {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: label + "-" + a, Labels: map[string]string{"for": label}},
			Data: map[string]string{"a": a}}
		return client.CoreV1().ConfigMaps("default").Create(t.Context(), cm, metav1.CreateOptions{})
	}
	// What is stored decides.
	if _, err := try("validating", "b"); err != nil {
		t.Error(err)
	}
	if _, err := try("validating", "c"); err == nil || !strings.HasSuffix(err.Error(), "denied request: only b") {
		t.Errorf("created: %v", err)
	}
	for a, want := range map[string]string{"b": "true", "c": "false"} {
		if cm, err := try("mutating", a); err != nil || cm.Data["found"] != want {
			t.Errorf("%s: %v, %v", a, cm, err)
		}
	}
	if _, err := try("webhook", "c"); err != nil {
		t.Errorf("a webhook whose condition is not met was called: %v", err)
	}
	if _, err := try("webhook", "b"); err == nil || !strings.Contains(err.Error(), `failed calling webhook "newer.example.com"`) {
		t.Errorf("a webhook whose condition is met was not called: %v", err)
	}
	// A new one of it is refused, and one that is written as it was is not.
	patch := func(body string) error {
		_, err := api.ValidatingAdmissionPolicies().Patch(t.Context(), "newer", types.MergePatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	spec := func(expression, message string) string {
		b, err := json.Marshal(map[string]any{"spec": map[string]any{"validations": []any{map[string]any{"expression": expression,
			"message": message}}}})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for body, want := range map[string]string{
		`{"metadata":{"labels":{"a":"b"}}}`:                    "",
		spec(newer, "nothing but b"):                           "",
		spec(`[object.data.a].includes("c")`, "nothing but c"): "undeclared reference to 'includes'",
	} {
		if err := patch(body); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", body, err, want)
		}
	}
	undeclared := func(what string, err error) {
		t.Helper()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "undeclared reference to 'includes' (in container '')") {
			t.Errorf("%s with a newer expression: %v", what, err)
		}
	}
	again := metav1.ObjectMeta{Name: "again"}
	validating.ObjectMeta, mutating.ObjectMeta, webhook.ObjectMeta = again, again, again
	_, err := api.ValidatingAdmissionPolicies().Create(t.Context(), validating, metav1.CreateOptions{})
	undeclared("a validating policy", err)
	_, err = api.MutatingAdmissionPolicies().Create(t.Context(), mutating, metav1.CreateOptions{})
	undeclared("a mutating policy", err)
	_, err = api.ValidatingWebhookConfigurations().Create(t.Context(), webhook, metav1.CreateOptions{})
	undeclared("a webhook", err)
}

// authorizerCost: questions to the authorizer cost 350,000 each, of 1,000,000 that one expression may and of 10,000,000 that all of a
// policy may, whether they are cached or not; a variable costs once. The same bounds hold for conditions and mutations.
func (p *policies) authorizerCost(t *testing.T, ns string) {
	asks := func(n int, of int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("authorizer.group('').resource('configmaps').namespace('n%d').check('create').allowed()", i%of))
		}
		return strings.Join(all, " && ")
	}
	many := func(n int, expression string) []admissionregistrationv1.Validation {
		var all []string
		for range n {
			all = append(all, expression)
		}
		return validations(all...)
	}
	const spent = "validation failed due to running out of cost budget, no further validation rules will be run"
	const cut = "resulted in error: operation cancelled: actual cost limit exceeded"
	type vspec = admissionregistrationv1.ValidatingAdmissionPolicySpec
	for i, c := range []struct {
		what string
		spec vspec
		want string
	}{
		{"two questions in an expression", vspec{Validations: validations(asks(2, 2))}, ""},
		{"three", vspec{Validations: validations(asks(3, 3))}, cut},
		{"three times the same", vspec{Validations: validations(asks(3, 1))}, cut},
		{"two in each of fourteen", vspec{Validations: many(14, asks(2, 2))}, ""},
		{"two in each of fifteen", vspec{Validations: many(15, asks(2, 1))}, spent},
		{"a variable, forty times", vspec{Variables: []admissionregistrationv1.Variable{{Name: "may", Expression: asks(1, 1)}},
			Validations: many(40, "variables.may")}, ""},
		{"three conditions of two", vspec{Validations: validations("true"), MatchConditions: conditions(3, asks(2, 2))}, ""},
		{"four conditions of two", vspec{Validations: validations("true"), MatchConditions: conditions(4, asks(2, 2))}, spent},
	} {
		t.Run(c.what, func(t *testing.T) {
			name := fmt.Sprintf("%s-%d", ns, i)
			c.spec.MatchConstraints = &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("", "v1", "configmaps")),
				NamespaceSelector: in(ns)}
			p.validate(t, name, c.spec, admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{})
			if c.want == "" {
				p.allowed(t, ns, name)
				return
			}
			p.denied(t, ns, name, c.want)
		})
	}
	for n, want := range map[int]string{2: "", 3: cut} {
		t.Run(fmt.Sprintf("a mutation of %d", n), func(t *testing.T) {
			name := fmt.Sprintf("%s-m%d", ns, n)
			p.mutate(t, name, admissionregistrationv1.MutatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("", "v1", "configmaps")),
					NamespaceSelector: in(ns)},
				Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
						Expression: "Object{data: {'may': string(" + asks(n, n) + ")}}",
					}}},
			})
			if want != "" {
				p.denied(t, ns, name, want)
			} else if cm := p.allowed(t, ns, name); cm.Data["may"] != "true" {
				t.Errorf("data %v", cm.Data)
			}
		})
	}
}

func conditions(n int, expression string) []admissionregistrationv1.MatchCondition {
	var all []admissionregistrationv1.MatchCondition
	for i := range n {
		all = append(all, admissionregistrationv1.MatchCondition{Name: fmt.Sprint("c", i), Expression: expression})
	}
	return all
}

// definitionThatGrows: a mutation sets fields of definitions that were made, and of fields that were added, a moment ago. Where
// kube-apiserver may not have heard of the definition yet and answers 503, there is nothing to wait for here.
func (p *policies) definitionThatGrows(t *testing.T, ns string) {
	definitions := apiextensions.NewForConfigOrDie(p.config).ApiextensionsV1().CustomResourceDefinitions()
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	for i := range 5 {
		kind := fmt.Sprint("Grown", i)
		plural := strings.ToLower(kind) + "s"
		def, err := definitions.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
						Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"old": text},
					}}}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.mutate(t, ns+plural, admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("example.com", "v1", plural))},
			Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: "Object{old: 'o'}"}}},
		})
		objects := dynamic.NewForConfigOrDie(p.config).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1",
			Resource: plural}).Namespace(ns)
		create := func(name string) (*unstructured.Unstructured, error) {
			return objects.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": kind,
				"metadata": map[string]any{"name": name}}}, metav1.CreateOptions{})
		}
		if obj, err := create("first"); err != nil || obj.Object["old"] != "o" {
			t.Fatalf("created %v: %v", obj, err)
		}
		// A field that is not there yet cannot be set; from its own commit on it can.
		policies := p.AdmissionregistrationV1().MutatingAdmissionPolicies()
		if _, err := policies.Patch(t.Context(), "m-"+ns+plural, types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/spec/mutations/0/applyConfiguration/expression","value":"Object{added: 'a'}"}]`),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := create("early"); err == nil || !strings.Contains(err.Error(), ".added: field not declared in schema") {
			t.Errorf("created with a field that is not there: %v", err)
		}
		def.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["added"] = text
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"versions": def.Spec.Versions}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := definitions.Patch(t.Context(), def.Name, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if obj, err := create("second"); err != nil || obj.Object["added"] != "a" {
			t.Fatalf("created %v: %v", obj, err)
		}
	}
}

// anotherKind: a patch may not make another kind of the object.
func (p *policies) anotherKind(t *testing.T, ns string) {
	for kind, want := range map[string]string{
		"Namespace": "failed to convert object: converting (v1.Namespace) to (core.ConfigMap): unknown conversion",
		"Pod":       `strict decoding error: unknown field "data"`,
		"Nothing":   `no kind "Nothing" is registered for version "v1"`,
	} {
		name := ns + strings.ToLower(kind)
		ops := `[JSONPatch{op: 'replace', path: '/kind', value: '` + kind + `'}]`
		if kind == "Namespace" {
			ops = strings.Replace(ops, "[", "[JSONPatch{op: 'remove', path: '/data'}, ", 1)
		}
		p.mutate(t, name, admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: namedRules(rules("", "v1", "configmaps")),
				NamespaceSelector: in(ns), ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"to": kind}}},
			Mutations: []admissionregistrationv1.Mutation{{PatchType: admissionregistrationv1.PatchTypeJSONPatch,
				JSONPatch: &admissionregistrationv1.JSONPatch{Expression: ops}}},
		})
		cm := configMap(name)
		cm.Labels = map[string]string{"to": kind}
		if _, err := p.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); !apierrors.IsInternalError(err) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", kind, err, want)
		}
	}
}
