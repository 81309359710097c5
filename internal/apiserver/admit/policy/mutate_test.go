// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/resource"
)

// labelling returns a policy, with its binding, that sets the label "x" of matching objects to the value of an
// expression.
func labelling(
	value string, match *admissionregistrationv1.MatchResources,
) (*admissionregistrationv1.MutatingAdmissionPolicy, *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
	p := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	p.Spec.MatchConstraints, p.Spec.ReinvocationPolicy = match, admissionregistrationv1.IfNeededReinvocationPolicy
	p.Spec.Mutations = []admissionregistrationv1.Mutation{{
		PatchType: admissionregistrationv1.PatchTypeApplyConfiguration,
		ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{
			Expression: `Object{metadata: Object.metadata{labels: {"x": ` + value + `}}}`,
		},
	}}
	b := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	b.Spec.PolicyName = "m"
	return p, b
}

// about returns match constraints with one rule, which also matches the same objects in other versions.
func about(group, version, plural string) *admissionregistrationv1.MatchResources {
	m, equivalent := everything(), admissionregistrationv1.Equivalent
	m.MatchPolicy = &equivalent
	m.ResourceRules = []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{"*"},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{version}, Resources: []string{plural}},
	}}}
	return m
}

func creation(d *resource.Descriptor, obj resource.Object) *admit.Attributes {
	return &admit.Attributes{
		Operation: admit.Create, Descriptor: d, Version: "v1", Namespace: obj.GetNamespace(), Name: obj.GetName(), Object: obj,
		Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"}, Warn: func(string) {}, Annotate: func(string, string) {},
	}
}

// later is a plug-in that requests another round, and sets a label unless it is empty.
type later struct{ label string }

func (later) Name() string { return "Later" }

func (l later) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if a.Round == 0 && l.label != "" {
		a.Object.GetLabels()[l.label] = "y"
	}
	a.CallAgain()
	return nil
}

// TestCalledAgain checks that a policy that requests it is called again only if another plug-in has changed the object
// since.
func TestCalledAgain(t *testing.T) {
	const failed, applied = "error_type=invalid_error,policy=m,policy_binding=b} ", "error_type=no_error,policy=m,policy_binding=b} "
	for _, c := range []struct {
		name, condition, label string
		again                  admissionregistrationv1.ReinvocationPolicyType
		want                   string // the label that the policy sets
		counts                 []string
	}{
		{"changed", "", "late", admissionregistrationv1.IfNeededReinvocationPolicy, "y", []string{failed + "1", applied + "1"}},
		{"changed, never again", "", "late", admissionregistrationv1.NeverReinvocationPolicy, "", []string{failed + "1"}},
		{"not changed", "", "", admissionregistrationv1.IfNeededReinvocationPolicy, "", []string{failed + "1"}},
		{"not called before", "has(object.metadata.labels.late)", "late", admissionregistrationv1.IfNeededReinvocationPolicy, "", nil},
	} {
		h, _, m := server(t, Options{})
		p, b := labelling("object.metadata.labels.late", about("", "v1", "pods"))
		ignore := admissionregistrationv1.Ignore
		p.Spec.FailurePolicy, p.Spec.ReinvocationPolicy = &ignore, c.again
		if c.condition != "" {
			p.Spec.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "c", Expression: c.condition}}
		}
		l := shelved(p, b)
		if err := m.Load(t.Context(), l); err != nil {
			t.Fatal(err)
		}
		a := creation(h.Kinds()[0], pod())
		if err := (admit.Chain{m, later{c.label}}).Mutate(t.Context(), l, a); err != nil {
			t.Fatal(err)
		}
		if got := a.Object.GetLabels()["x"]; got != c.want || a.Round != 1 {
			t.Errorf("%s: the label is %q after round %d, want %q after 1", c.name, got, a.Round, c.want)
		}
		var counts []string
		for line := range strings.Lines(admittest.Counts(t, h.Metrics.(prometheus.Gatherer)) + "\n") {
			if _, count, ok := strings.Cut(strings.TrimSpace(line), "mutating_admission_policy_check_total{"); ok {
				counts = append(counts, count)
			}
		}
		if got, want := fmt.Sprint(counts), fmt.Sprint(c.counts); got != want {
			t.Errorf("%s: counted %s, want %s", c.name, got, want)
		}
	}
}

// widgets returns a kind of pods in two versions. Conversion to and from the second fails while the errors are set.
type widgets struct{ from, to error }

func (w *widgets) kind() *resource.Descriptor {
	return &resource.Descriptor{
		Group: "example.com", Resource: "widgets", Kind: "Widget", ListKind: "WidgetList", Namespaced: true, Storage: "v1", Prefix: "widgets",
		Versions: []resource.Version{
			{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }},
			{
				Name: "v2", New: func() resource.Object { return &corev1.Pod{} },
				FromHub: func(obj resource.Object) (resource.Object, error) { return obj, w.from },
				ToHub:   func(obj resource.Object) (resource.Object, error) { return obj, w.to },
			},
		},
	}
}

// TestConversions checks that an object is rejected if it cannot be converted to the version of a policy or back.
func TestConversions(t *testing.T) {
	broken := errors.New("no such field")
	const v = "ValidatingAdmissionPolicy 'd' with binding 'd-binding' denied request: "
	for _, c := range []struct {
		name                 string
		from, to             error
		mutating, validating string // the errors
	}{
		{"both ways", nil, nil, "", ""},
		{"to the policy's", broken, nil, `policy "m" denied request: failed to configure policy: no such field`,
			v + "failed to configure binding: failed to convert object version: no such field"},
		{"from the policy's", nil, broken, "Internal error occurred: failed to convert object: no such field", ""},
	} {
		h, validating, mutating := server(t, Options{})
		w := &widgets{c.from, c.to}
		all := append(h.Kinds(), w.kind())
		h.Kinds = func() []*resource.Descriptor { return all }
		h.Kind = func(r schema.GroupResource) *resource.Descriptor { return kindOf(all, r) }
		match := about("example.com", "v2", "widgets")
		p, b := labelling("'y'", match)
		d, db := denial("d", "object.apiVersion == 'example.com/v2'", admissionregistrationv1.Fail)
		d.Spec.MatchConstraints = match
		l := shelved(p, b, d, db)
		if err := errors.Join(mutating.Load(t.Context(), l), validating.Load(t.Context(), l)); err != nil {
			t.Fatal(err)
		}
		widget := pod()
		widget.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"})
		a := creation(w.kind(), widget)
		if got := fmt.Sprint(admit.Chain{mutating}.Mutate(t.Context(), l, a)); got != cmp.Or(c.mutating, "<nil>") {
			t.Errorf("%s: mutating policies say %s, want %s", c.name, got, c.mutating)
		}
		if kind := a.Object.GetObjectKind().GroupVersionKind().String(); kind != "example.com/v1, Kind=Widget" {
			t.Errorf("%s: the object is %s", c.name, kind)
		}
		want := "<nil>"
		if c.validating != "" {
			want = `widgets.example.com "p" is forbidden: ` + c.validating
		}
		if got := fmt.Sprint(admit.Chain{validating}.Validate(t.Context(), l, a)); got != want {
			t.Errorf("%s: validating policies say %s, want %s", c.name, got, want)
		}
	}
}

// TestParamsConvert checks that a policy fails if its parameters cannot be converted to the version that it names.
func TestParamsConvert(t *testing.T) {
	h, v, _ := server(t, Options{})
	w := &widgets{from: errors.New("no such field")}
	all := append(h.Kinds(), w.kind())
	h.Kinds = func() []*resource.Descriptor { return all }
	p, b := denial("d", "params != null", admissionregistrationv1.Fail)
	p.Spec.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "example.com/v2", Kind: "Widget"}
	b.Spec.ParamRef = &admissionregistrationv1.ParamRef{Name: "p"}
	l := shelved(p, b)
	l.objects["widgets/default/p"] = pod()
	if err := v.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	const want = `pods "p" is forbidden: ValidatingAdmissionPolicy 'd' with binding 'd-binding' denied request: ` +
		"failed to configure binding: no such field"
	if got := verdictOn(t, h, v, l, pod()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestShapes checks that mutations use the schema of the object's kind. An object of another kind in a subresource has
// no known schema. Without schemas mutations fail.
func TestShapes(t *testing.T) {
	h, _, m := server(t, Options{})
	deployments := h.Kinds()[1]
	deployments.Subresources = append(deployments.Subresources, resource.Subresource{
		Name: "scale", GroupVersionKind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"},
	})
	p, b := labelling("'y'", everything())
	l := shelved(p, b)
	if err := m.Load(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	meta := metav1.ObjectMeta{Name: "d", Namespace: "default"}
	for subresource, c := range map[string]struct {
		obj  resource.Object
		want *resource.Descriptor
	}{
		"": {&appsv1.Deployment{ObjectMeta: meta}, deployments}, "status": {&appsv1.Deployment{ObjectMeta: meta}, deployments},
		"scale": {&autoscalingv1.Scale{ObjectMeta: meta}, nil},
	} {
		var asked []*resource.Descriptor
		h.Types = func(d *resource.Descriptor) (managedfields.TypeConverter, error) {
			asked = append(asked, d)
			return managedfields.NewDeducedTypeConverter(), nil
		}
		a := creation(deployments, c.obj)
		a.Subresource = subresource
		c.obj.GetObjectKind().SetGroupVersionKind(a.Kind())
		if err := m.Mutate(t.Context(), l, a); err != nil {
			t.Errorf("%q: %v", subresource, err)
		}
		if len(asked) != 1 || asked[0] != c.want || a.Object.GetLabels()["x"] != "y" {
			t.Errorf("%q: asked for %v, labels %v", subresource, asked, a.Object.GetLabels())
		}
	}
	h.Types = func(*resource.Descriptor) (managedfields.TypeConverter, error) {
		return nil, errors.New("no such shape")
	}
	err := m.Mutate(t.Context(), l, creation(h.Kinds()[0], pod()))
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "no such shape") {
		t.Errorf("without a shape: %v", err)
	}
	h.Types = nil
	if err := m.Mutate(t.Context(), l, creation(h.Kinds()[0], pod())); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without shapes: %v", err)
	}
}
