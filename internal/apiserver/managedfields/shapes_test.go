// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapply "k8s.io/apiextensions-apiserver/pkg/client/applyconfiguration"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clientgoapply "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	aggregatoropenapi "k8s.io/kube-aggregator/pkg/generated/openapi"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// TestShapesAreUpstreams compares every type with the one that the libraries parse.
func TestShapesAreUpstreams(t *testing.T) {
	definitions := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(definitions); err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	for _, c := range []struct {
		shapes []byte
		theirs managedfields.TypeConverter
		object runtime.Object
		least  int
	}{
		{shapes, clientgoapply.NewTypeConverter(scheme.Scheme), &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}}, 500},
		{definitionShapes, apiextensionsapply.NewTypeConverter(definitions), crd, 20},
	} {
		value, err := c.theirs.ObjectToTyped(c.object)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readShapes(c.shapes)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]*schema.TypeDef{}
		for i := range value.Schema().Types {
			want[value.Schema().Types[i].Name] = &value.Schema().Types[i]
		}
		if len(want) < c.least || len(want) != len(got) {
			t.Fatalf("%d types, upstream has %d; run go generate", len(got), len(want))
		}
		for i := range got {
			if d := cmp.Diff(want[got[i].Name], &got[i], cmpopts.IgnoreUnexported(schema.Map{})); d != "" {
				t.Errorf("%s is not upstream's; run go generate: %s", got[i].Name, d)
			}
		}
	}
}

// TestModelsAreUpstreams compares the models with those that the libraries have as Go code.
func TestModelsAreUpstreams(t *testing.T) {
	all, err := readModels("")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, definitions := range []common.GetOpenAPIDefinitions{openapi.GetOpenAPIDefinitions, aggregatoropenapi.GetOpenAPIDefinitions} {
		for name, d := range definitions(func(path string) spec.Ref { return spec.MustCreateRef("#/components/schemas/" + path) }) {
			got := all[name]
			if got == nil {
				continue
			}
			seen[name] = true
			want, err := json.Marshal(d.Schema)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := json.Marshal(got); err != nil || string(b) != string(want) {
				t.Errorf("%s is not upstream's; run go generate: %s, %v", name, b, err)
			}
		}
	}
	for _, name := range []string{
		metaPrefix + "ObjectMeta", metaPrefix + "OwnerReference", metaPrefix + "ManagedFieldsEntry", metaPrefix + "FieldsV1", metaPrefix + "Time",
		servicePrefix + "APIService", servicePrefix + "APIServiceSpec", servicePrefix + "ServiceReference", "io.k8s.api.autoscaling.v1.Scale",
	} {
		if !seen[name] {
			t.Errorf("no model %s", name)
		}
	}
	if len(seen) != len(all) {
		t.Errorf("%d models, %d of them upstream's", len(all), len(seen))
	}
}

func BenchmarkReadShapes(b *testing.B) {
	for b.Loop() {
		if _, err := readShapes(shapes); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzReadShapes(f *testing.F) {
	f.Add([]byte("not gzip"))
	f.Add(shapes[:1000])
	f.Fuzz(func(t *testing.T, data []byte) {
		if types, err := readShapes(data); err == nil && types == nil {
			t.Error("no types and no error")
		}
	})
}

// TestTrusting compares and merges all pairs of some pods whose lists have duplicates, lack keys or are empty, with and
// without prior validation.
func TestTrusting(t *testing.T) {
	builtIn, err := builtInTypes()
	if err != nil {
		t.Fatal(err)
	}
	trusts := builtIn.(trusting)
	upstream := managedfields.NewSchemeTypeConverter(scheme.Scheme, trusts.parser)
	var all []*corev1.Pod
	add := func(change func(p *corev1.Pod)) {
		p := &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"},
				OwnerReferences: []metav1.OwnerReference{{Name: "o", UID: "u"}}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Name: "c", Env: []corev1.EnvVar{{Name: "A", Value: "1"}}, Ports: []corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("10m")}},
			}}},
		}
		change(p)
		all = append(all, p)
	}
	first := func(p *corev1.Pod) *corev1.Container { return &p.Spec.Containers[0] }
	add(func(*corev1.Pod) {})
	add(func(p *corev1.Pod) { p.Spec.Containers = nil })
	add(func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) })
	add(func(p *corev1.Pod) { first(p).Name = "" })
	add(func(p *corev1.Pod) { first(p).Env = append(first(p).Env, corev1.EnvVar{Name: "A", Value: "2"}) })
	add(func(p *corev1.Pod) { first(p).Env[0].Name = "" })
	add(func(p *corev1.Pod) { first(p).Ports = append(first(p).Ports, first(p).Ports[0]) })
	add(func(p *corev1.Pod) { first(p).Ports[0].Protocol = "" })
	add(func(p *corev1.Pod) { first(p).Resources.Requests["cpu"] = resource.MustParse("1") })
	add(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "" })
	add(func(p *corev1.Pod) { p.Finalizers = []string{"x/y", "x/y"} })
	add(func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{}, {}} })
	add(func(p *corev1.Pod) { p.Spec.HostAliases = []corev1.HostAlias{{IP: "1.2.3.4"}, {}} })
	add(func(p *corev1.Pod) { p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{}} })
	add(func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{}, {IP: "1.2.3.4"}} })
	add(func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "True"}, {Type: "Ready", Status: "False"}}
	})

	result := func(c managedfields.TypeConverter, a, b *corev1.Pod) (same bool, all string) {
		lhs, err := c.ObjectToTyped(a, typed.AllowDuplicates)
		if err != nil {
			return false, err.Error()
		}
		rhs, err := c.ObjectToTyped(b, typed.AllowDuplicates)
		if err != nil {
			return false, err.Error()
		}
		compared, err := lhs.Compare(rhs)
		if err != nil {
			return false, err.Error()
		}
		merged, err := lhs.Merge(rhs)
		if err != nil { // as with duplicates
			return compared.IsSame(), compared.String() + err.Error()
		}
		text, err := value.ToJSON(merged.AsValue())
		if err != nil {
			return false, err.Error()
		}
		return compared.IsSame(), compared.String() + string(text)
	}
	for i, a := range all {
		for j, b := range all {
			_, want := result(upstream, a, b)
			same, got := result(trusts, a, b)
			if got != want {
				t.Errorf("pods %d and %d:\n%s\nwant\n%s", i, j, got, want)
			}
			if same != (i == j) {
				t.Errorf("pods %d and %d are the same: %t", i, j, same)
			}
		}
	}
}

// TestNamesAreUpstreams compares the names of the models of all kinds that client-go knows.
func TestNamesAreUpstreams(t *testing.T) {
	builtIn, err := builtInTypes()
	if err != nil {
		t.Fatal(err)
	}
	own := builtIn.(trusting).names
	kinds := scheme.Scheme.AllKnownTypes()
	if len(kinds) < 500 {
		t.Fatalf("%d kinds", len(kinds))
	}
	for gvk := range kinds {
		if gvk.Version == runtime.APIVersionInternal {
			continue // none has a model
		}
		want, err := scheme.Scheme.ToOpenAPIDefinitionName(gvk)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time it is remembered
			if got, err := own.of(gvk); err != nil || got != want {
				t.Errorf("%s is %s, want %s: %v", gvk, got, want, err)
			}
		}
	}
	for _, gvk := range []apischema.GroupVersionKind{{Kind: "Pod"}, {Version: "v1", Kind: "Unknown"}} {
		if _, err := own.of(gvk); err == nil {
			t.Errorf("%s has a name", gvk)
		}
	}
	list := &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Unknown"}}
	if _, err := builtIn.ObjectToTyped(list); !runtime.IsNotRegisteredError(errors.Unwrap(err)) {
		t.Errorf("an unknown kind: %v", err)
	}
}
