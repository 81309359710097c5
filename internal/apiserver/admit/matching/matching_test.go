// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package matching

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// namespaces is a backend with the namespace ns, whose label env is prod, or with none.
type namespaces struct {
	resource.Backend
	err   error
	reads int
}

func (n *namespaces) Get(_ context.Context, r schema.GroupResource, _, name string) (resource.Object, error) {
	n.reads++
	if n.err != nil {
		return nil, n.err
	}
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"env": "prod"}}}, nil
}

// deployments returns deployments in apps/v1, apps/v1beta1 (whose objects have an annotation), apps/v0 (not served) and
// extensions/v1.
func deployments() (*resource.Descriptor, *admit.Host) {
	made := func() resource.Object { return &appsv1.Deployment{} }
	note := func(value string) func(resource.Object) (resource.Object, error) {
		return func(obj resource.Object) (resource.Object, error) {
			if obj.GetName() == "bad" {
				return nil, errors.New("no such form")
			}
			obj.SetAnnotations(map[string]string{"form": value})
			return obj, nil
		}
	}
	d := &resource.Descriptor{Group: "apps", Resource: "deployments", Kind: "Deployment", Namespaced: true, Storage: "v1",
		Prefix: "deployments", Versions: []resource.Version{
			{Name: "v1", New: made, Default: func(obj resource.Object) { obj.SetGenerateName("filled in") }},
			{Name: "v1beta1", New: made, FromHub: note("v1beta1"), ToHub: note("v1")}, {Name: "v0", New: made, Unserved: true},
		}}
	d.Subresources = []resource.Subresource{{Name: "status"},
		{Name: "scale", GroupVersionKind: schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}}}
	old := &resource.Descriptor{Group: "extensions", Resource: "deployments", Kind: "Deployment", Namespaced: true, Storage: "v1",
		Prefix: "deployments", Versions: []resource.Version{{Name: "v1", New: made}}}
	other := &resource.Descriptor{Group: "batch", Resource: "jobs", Kind: "Job", Namespaced: true, Storage: "v1", Prefix: "jobs",
		Versions: []resource.Version{{Name: "v1", New: made}}}
	all := []*resource.Descriptor{d, old, other}
	return d, &admit.Host{Kinds: func() []*resource.Descriptor { return all }, Kind: func(r schema.GroupResource) *resource.Descriptor {
		for _, k := range all {
			if k.GroupResource() == r {
				return k
			}
		}
		return nil
	}}
}

func deployment(name string) *appsv1.Deployment {
	return &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"team": "a"}}}
}

// asked returns the creation of the deployment d as apps/v1.
func asked() *admit.Attributes {
	d, _ := deployments()
	return &admit.Attributes{Operation: admit.Create, Descriptor: d, Version: "v1", Namespace: "ns", Name: "d", Object: deployment("d")}
}

func requestOf(a *admit.Attributes, b resource.Backend) *Request {
	_, h := deployments()
	return NewRequest(h, b, a)
}

// rule parses "operations group version resources scope".
func rule(text string) admissionregistrationv1.RuleWithOperations {
	f := strings.Fields(text)
	r := admissionregistrationv1.RuleWithOperations{Rule: admissionregistrationv1.Rule{APIGroups: strings.Split(f[1], ","),
		APIVersions: strings.Split(f[2], ","), Resources: strings.Split(f[3], ",")}}
	for op := range strings.SplitSeq(f[0], ",") {
		r.Operations = append(r.Operations, admissionregistrationv1.OperationType(op))
	}
	if len(f) > 4 {
		scope := admissionregistrationv1.ScopeType(f[4])
		r.Scope = &scope
	}
	return r
}

func everywhere(c Criteria) *Criteria {
	c.Select(&metav1.LabelSelector{}, &metav1.LabelSelector{})
	return &c
}

// TestRules covers the requests that a rule matches: operation, group, version, resource with its subresource, scope,
// and equivalent resources if enabled.
func TestRules(t *testing.T) {
	const own, beta, old = "apps/v1, Resource=deployments", "apps/v1beta1, Resource=deployments", "extensions/v1, Resource=deployments"
	for _, c := range []struct {
		rules       string // separated by |
		subresource string
		equivalent  bool
		want        string
	}{
		{"CREATE apps v1 deployments", "", false, own},
		{"* * * *", "", false, own},
		{"UPDATE,CREATE batch,apps v2,v1 jobs,deployments", "", false, own},
		{"UPDATE apps v1 deployments", "", false, ""},
		{"CREATE batch v1 deployments", "", false, ""},
		{"CREATE apps v2 deployments", "", false, ""},
		{"CREATE apps v1 jobs", "", false, ""},
		{"UPDATE apps v1 deployments|CREATE apps v1 deployments", "", false, own},
		{"* * * deployments", "status", false, ""},
		{"* * * deployments/status", "status", false, own},
		{"* * * deployments/scale", "status", false, ""},
		{"* * * deployments/*", "status", false, own},
		{"* * * */status", "status", false, own},
		{"* * * */*", "status", false, own},
		{"* * * deployments/status", "", false, ""},
		{"* * * deployments/*", "", false, own}, // as in upstream
		{"* * * * *", "", false, own},
		{"* * * * Namespaced", "", false, own},
		{"* * * * Cluster", "", false, ""},
		{"* * * * Odd", "", false, ""},
		{"* apps v1beta1 deployments", "", false, ""},
		{"* apps v1beta1 deployments", "", true, beta},
		{"* extensions v1 deployments", "", true, old},
		{"* extensions v1 deployments|* apps v1beta1 deployments", "", true, old}, // the first rule counts
		{"* apps v1beta1 deployments|* apps v1 deployments", "", true, own},       // the own form comes first
		{"* apps v0 deployments", "", true, ""},
		{"* batch v1 jobs", "", true, ""},
		{"UPDATE apps v1beta1 deployments", "", true, ""},
		{"* apps v1beta1 deployments/status", "status", true, beta},
		{"* extensions v1 deployments/status", "status", true, ""}, // it has no such subresource
		{"", "", false, ""},
	} {
		a := asked()
		a.Subresource = c.subresource
		criteria := everywhere(Criteria{Equivalent: c.equivalent})
		for text := range strings.SplitSeq(c.rules, "|") {
			if text != "" {
				criteria.Rules = append(criteria.Rules, rule(text))
			}
		}
		q := requestOf(a, &namespaces{})
		for range 2 { // other rules may have computed the equivalents before
			form, err := criteria.Match(t.Context(), q)
			got := ""
			if form != nil {
				got = form.Resource.String()
			}
			if err != nil || got != c.want {
				t.Errorf("%s of %q, equivalents %v: got %q, %v, want %q", c.rules, c.subresource, c.equivalent, got, err, c.want)
			}
		}
	}
}

// TestNamesAndExclusions checks that rules may be limited to names, that excluded rules take precedence, and that no
// rules match everything if enabled.
func TestNamesAndExclusions(t *testing.T) {
	all, beta := rule("* * * *"), rule("* apps v1beta1 deployments")
	for name, c := range map[string]struct {
		criteria Criteria
		want     bool
	}{
		"the name": {Criteria{Rules: []admissionregistrationv1.RuleWithOperations{all}, Names: [][]string{{"x", "d"}}},
			true},
		"another name": {Criteria{Rules: []admissionregistrationv1.RuleWithOperations{all}, Names: [][]string{{"x"}}}, false},
		"no names":     {Criteria{Rules: []admissionregistrationv1.RuleWithOperations{all}, Names: [][]string{{}}}, true},
		"names of another rule": {Criteria{Rules: []admissionregistrationv1.RuleWithOperations{all, all}, Names: [][]string{{"x"}}},
			true},
		"an equivalent of another name": {Criteria{Equivalent: true, Rules: []admissionregistrationv1.RuleWithOperations{beta},
			Names: [][]string{{"x"}}}, false},
		"an equivalent of the name": {Criteria{Equivalent: true, Rules: []admissionregistrationv1.RuleWithOperations{beta},
			Names: [][]string{{"d"}}}, true},
		"excluded": {Criteria{Rules: []admissionregistrationv1.RuleWithOperations{all},
			Excluded: []admissionregistrationv1.RuleWithOperations{all}}, false},
		"another is excluded": {Criteria{Rules: []admissionregistrationv1.RuleWithOperations{all},
			Excluded: []admissionregistrationv1.RuleWithOperations{beta}}, true},
		"an equivalent is excluded": {Criteria{Equivalent: true, Rules: []admissionregistrationv1.RuleWithOperations{all},
			Excluded: []admissionregistrationv1.RuleWithOperations{beta}}, false},
		"another name is excluded": {Criteria{Rules: []admissionregistrationv1.RuleWithOperations{all},
			Excluded: []admissionregistrationv1.RuleWithOperations{all}, ExcludedNames: [][]string{{"x"}}}, true},
		"no rules":                       {Criteria{}, false},
		"no rules, which mean anything":  {Criteria{Anything: true}, true},
		"one rule where none means all":  {Criteria{Anything: true, Rules: []admissionregistrationv1.RuleWithOperations{beta}}, false},
		"anything but what is excluded":  {Criteria{Anything: true, Excluded: []admissionregistrationv1.RuleWithOperations{all}}, false},
		"anything, another is excluded":  {Criteria{Anything: true, Excluded: []admissionregistrationv1.RuleWithOperations{beta}}, true},
		"nothing and something excluded": {Criteria{Excluded: []admissionregistrationv1.RuleWithOperations{beta}}, false},
	} {
		form, err := everywhere(c.criteria).Match(t.Context(), requestOf(asked(), &namespaces{}))
		if err != nil || (form != nil) != c.want {
			t.Errorf("%s: %v, %v", name, form, err)
		}
	}
}

// TestSelectors covers the labels of the namespace and of the objects. A selector that a request does not reach never
// fails it.
func TestSelectors(t *testing.T) {
	env := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"env": value}}
	}
	team := func(value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"team": value}}
	}
	any, wrong := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a",
		Operator: "Odd"}}}
	old := deployment("d")
	old.Labels["team"] = "b"
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "ns")
	namespace := &resource.Descriptor{Resource: "namespaces", Kind: "Namespace", Storage: "v1", Prefix: "namespaces",
		Versions: []resource.Version{{Name: "v1"}}}
	fresh := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"env": "test"}}}
	cluster := func(a *admit.Attributes) { a.Namespace = "" }
	for name, c := range map[string]struct {
		namespaces, objects *metav1.LabelSelector
		change              func(*admit.Attributes)
		fails               error
		want                string // "yes", "no", or an error
		reads               int
	}{
		"none in particular":                 {any, any, nil, nil, "yes", 0},
		"not set is nothing":                 {nil, any, nil, nil, "no", 1},
		"the namespace's label":              {env("prod"), any, nil, nil, "yes", 1},
		"another label of the namespace":     {env("test"), any, nil, nil, "no", 1},
		"no namespace":                       {env("test"), any, cluster, nil, "yes", 0},
		"no namespace, and a wrong selector": {wrong, any, cluster, nil, "yes", 0},
		"a wrong selector of namespaces": {wrong, any, nil, nil, `Internal error occurred: "Odd" is not a valid label selector operator`,
			0},
		"a wrong selector, and another object":   {wrong, team("b"), nil, nil, "no", 0},
		"a namespace that is gone":               {env("prod"), any, nil, gone, gone.Error(), 1},
		"a namespace that cannot be read":        {env("prod"), any, nil, errors.New("disk full"), "Internal error occurred: disk full", 1},
		"it cannot be read, but does not matter": {any, any, nil, errors.New("disk full"), "yes", 0},
		"the object's label":                     {any, team("a"), nil, nil, "yes", 0},
		"another label of the object":            {any, team("b"), nil, nil, "no", 0},
		"the old object's label":                 {any, team("b"), func(a *admit.Attributes) { a.Old = old }, nil, "yes", 0},
		"no object at all":                       {any, team("a"), func(a *admit.Attributes) { a.Object = nil }, nil, "no", 0},
		"a wrong selector of objects": {any, wrong, nil, nil, `Internal error occurred: "Odd" is not a valid label selector operator`,
			0},
		"a wrong one of objects, not this place": {env("test"), wrong, nil, nil, "no", 1},
		"a new namespace's label": {env("test"), any,
			func(a *admit.Attributes) { a.Descriptor, a.Name, a.Object = namespace, "ns", fresh }, nil, "yes", 0},
		"a changed namespace's label": {env("test"), any, func(a *admit.Attributes) {
			a.Operation, a.Descriptor, a.Name, a.Object = admit.Update, namespace, "ns", fresh
		}, nil, "yes", 0},
		"a finalized namespace's label": {env("test"), any, func(a *admit.Attributes) {
			a.Operation, a.Subresource, a.Descriptor, a.Name, a.Object = admit.Update, "finalize", namespace, "ns", fresh
		}, nil, "no", 1},
		"a deleted namespace's label": {env("prod"), any, func(a *admit.Attributes) {
			a.Operation, a.Descriptor, a.Name, a.Object, a.Old = admit.Delete, namespace, "ns", nil, fresh
		}, nil, "yes", 1},
	} {
		a, b := asked(), &namespaces{err: c.fails}
		if c.change != nil {
			c.change(a)
		}
		criteria := &Criteria{Anything: true}
		criteria.Select(c.namespaces, c.objects)
		q := requestOf(a, b)
		var got string
		for range 2 { // the namespace is read once
			form, err := criteria.Match(t.Context(), q)
			if got = "no"; form != nil {
				got = "yes"
			}
			if err != nil {
				got = err.Error()
			}
		}
		if strings.HasPrefix(name, "not set") {
			c.reads = b.reads
		}
		if got != c.want || b.reads != c.reads {
			t.Errorf("%s: %s with %d reads, want %s with %d", name, got, b.reads, c.want, c.reads)
		}
	}
}

// TestForms covers the objects of a request in the form that a rule names, the result of a mutation, and its conversion
// to the request's own form.
func TestForms(t *testing.T) {
	beta := &Form{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1beta1", Resource: "deployments"},
		Kind: schema.GroupVersionKind{Group: "apps", Version: "v1beta1", Kind: "Deployment"}}
	ext := &Form{Resource: schema.GroupVersionResource{Group: "extensions", Version: "v1", Resource: "deployments"},
		Kind: schema.GroupVersionKind{Group: "extensions", Version: "v1", Kind: "Deployment"}}
	a := asked()
	a.Operation, a.Old = admit.Update, deployment("d")
	q := requestOf(a, &namespaces{})
	see := func(obj runtime.Object) string {
		if obj == nil {
			return "none"
		}
		return obj.GetObjectKind().GroupVersionKind().GroupVersion().String() + " " + obj.(resource.Object).GetAnnotations()["form"]
	}
	for _, c := range []struct {
		form *Form
		want string
	}{{q.Form(), "apps/v1 "}, {beta, "apps/v1beta1 v1beta1"}, {ext, "extensions/v1 "}} {
		v, err := q.In(t.Context(), c.form)
		if err != nil || see(v.Object) != c.want || see(v.Old) != c.want || v.Form != *c.form {
			t.Errorf("%v: %v, %s, %s, %v", c.form.Kind, v.Form, see(v.Object), see(v.Old), err)
		}
		if again, _ := q.In(t.Context(), c.form); again != v {
			t.Errorf("%v is made twice", c.form.Kind)
		}
		if l := q.Library(v); l.VersionedKind != c.form.Kind || see(l.VersionedObject.Object()) != c.want ||
			see(l.VersionedOldObject.Object()) != c.want || q.Library(v) != l {
			t.Errorf("%v: the library sees %v", c.form.Kind, l.VersionedKind)
		}
	}
	if a.Object.GetAnnotations() != nil || a.Old.GetAnnotations() != nil {
		t.Error("a shared object was changed")
	}
	// one kind under another resource name
	renamed := &Form{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1beta1", Resource: "others"}, Kind: beta.Kind}
	if v, err := q.In(t.Context(), renamed); err != nil || v.Form != *renamed || see(v.Object) != "apps/v1beta1 v1beta1" {
		t.Errorf("renamed: %v, %v", v, err)
	}

	v, err := q.In(t.Context(), beta)
	if err != nil {
		t.Fatal(err)
	}
	changed := v.Object.(*appsv1.Deployment).DeepCopy()
	changed.Labels["team"] = "c"
	next := q.Change(v, changed)
	if q.Current().GetLabels()["team"] != "c" || next.Old != v.Old || q.Record().GetObject() != runtime.Object(changed) {
		t.Error("the change is not what is seen now")
	}
	if v, err := q.In(t.Context(), q.Form()); err != nil || see(v.Object) != "apps/v1 v1" ||
		v.Object.(resource.Object).GetLabels()["team"] != "c" {
		t.Errorf("in the own form: %v", err)
	}
	if see(a.Object) != "apps/v1 v1" || a.Object.GetLabels()["team"] != "c" || q.Current() != a.Object || q.Settle() != nil {
		t.Errorf("settled: %s", see(a.Object))
	}

	for _, f := range []*Form{
		{Resource: schema.GroupVersionResource{Group: "none", Version: "v1", Resource: "deployments"}},
		{Resource: schema.GroupVersionResource{Group: "apps", Version: "v9", Resource: "deployments"}, Kind: schema.GroupVersionKind{Kind: "x"}},
	} {
		if _, err := q.In(t.Context(), f); err == nil || err.Error() != fmt.Sprintf("convert to %v: it is not served", f.Resource) {
			t.Errorf("%v: %v", f.Resource, err)
		}
	}
	for _, bad := range []*admit.Attributes{{Object: deployment("bad")}, {Object: deployment("d"), Old: deployment("bad")}} {
		a := asked()
		a.Object, a.Old = bad.Object, bad.Old
		if _, err := requestOf(a, &namespaces{}).In(t.Context(), beta); err == nil || err.Error() != "no such form" {
			t.Errorf("a conversion that fails: %v", err)
		}
	}
	q = requestOf(asked(), &namespaces{})
	q.Change(&Versioned{Form: Form{Resource: schema.GroupVersionResource{Group: "apps", Version: "v9", Resource: "deployments"}}},
		deployment("d"))
	if err := q.Settle(); err == nil || err.Error() != "convert to apps/v9, Resource=deployments: it is not served" {
		t.Errorf("settled what came from a version that is not served: %v", err)
	}
	q = requestOf(asked(), &namespaces{})
	if v, err = q.In(t.Context(), beta); err != nil {
		t.Fatal(err)
	}
	q.Change(v, deployment("bad"))
	if err := q.Settle(); err == nil {
		t.Error("settled what cannot be converted back")
	}
	if _, err := q.In(t.Context(), ext); err == nil {
		t.Error("gave another form of what cannot be converted back")
	}
}

// TestScale checks that a subresource with a kind of its own has one form.
func TestScale(t *testing.T) {
	a := asked()
	a.Subresource = "scale"
	q := requestOf(a, &namespaces{})
	if k := q.Form().Kind; k.Kind != "Scale" {
		t.Errorf("the kind is %v", k)
	}
	form := &Form{Resource: schema.GroupVersionResource{Group: "apps", Version: "v1beta1", Resource: "deployments"}, Kind: q.Form().Kind}
	v, err := q.In(t.Context(), form)
	if err != nil || v.Object.(resource.Object).GetAnnotations() != nil || v.Object.GetObjectKind().GroupVersionKind() != form.Kind {
		t.Errorf("%v, %v", v, err)
	}
	changed := deployment("d")
	changed.APIVersion = form.Kind.GroupVersion().String()
	q.Change(v, changed)
	if err := q.Settle(); err != nil || a.Object != resource.Object(changed) || changed.APIVersion != "apps/v1" {
		t.Errorf("settled as %s, %v", changed.APIVersion, err)
	}
	q.Default(changed, form)
	if changed.GenerateName != "" {
		t.Error("filled in what the kind itself leaves out")
	}
	whole := requestOf(asked(), &namespaces{})
	if whole.Default(changed, whole.Form()); changed.GenerateName != "filled in" {
		t.Error("filled in nothing")
	}
}

// TestConnect checks that the options of a connection are its object.
func TestConnect(t *testing.T) {
	a := asked()
	a.Operation, a.Object, a.Options = admit.Connect, nil, &corev1.PodExecOptions{Container: "c"}
	q := requestOf(a, &namespaces{})
	form := &Form{Resource: a.Resource(), Kind: corev1.SchemeGroupVersion.WithKind("PodExecOptions")}
	v, err := q.In(t.Context(), form)
	if err != nil || v.Object.(*corev1.PodExecOptions).Container != "c" || v.Object.GetObjectKind().GroupVersionKind() != form.Kind ||
		v.Old != nil {
		t.Errorf("%v, %v", v, err)
	}
	if r := q.Record(); r.GetObject() != a.Options || r.GetOperationOptions() != nil || r.GetName() != "d" || r.GetNamespace() != "ns" {
		t.Errorf("recorded %v", r.GetObject())
	}
	a = asked()
	a.Options, a.Old = &metav1.CreateOptions{}, deployment("o")
	if r := requestOf(a, &namespaces{}).Record(); r.GetOperationOptions() != a.Options || r.GetObject() != runtime.Object(a.Object) ||
		r.GetOldObject() != runtime.Object(a.Old) {
		t.Error("recorded other options")
	}
	a.Object, a.Old = nil, nil
	if r := requestOf(a, &namespaces{}).Record(); r.GetObject() != nil || r.GetOldObject() != nil {
		t.Error("recorded objects that are not there")
	}
}
