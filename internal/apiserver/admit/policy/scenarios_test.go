// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/resource"
)

var update = flag.Bool("update", false, "write the golden files")

// scenario is one request that meets some policies.
type scenario struct {
	Name        string           `json:"name"`
	Stored      []map[string]any `json:"stored"` // policies, bindings, parameters, namespaces
	Unreadable  string           `json:"unreadable"`
	Operation   string           `json:"operation"` // CREATE when empty
	Version     string           `json:"version"`   // v1 when empty
	Subresource string           `json:"subresource"`
	Object      map[string]any   `json:"object"`
	Old         map[string]any   `json:"old"`
}

// library is a backend of a few objects. Reads of the resource that is unreadable fail.
type library struct {
	resource.Backend
	objects    map[string]resource.Object
	unreadable string
}

func (l *library) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	if r.Resource == l.unreadable {
		return nil, errors.New("disk full")
	}
	if obj := l.objects[r.Resource+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (l *library) List(_ context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	if r.Resource == l.unreadable {
		return nil, errors.New("disk full")
	}
	var out []resource.Object
	for _, k := range slices.Backward(slices.Sorted(maps.Keys(l.objects))) { // nobody promises an order
		if strings.HasPrefix(k, r.Resource+"/") && (namespace == "" || strings.HasPrefix(k, r.Resource+"/"+namespace+"/")) {
			out = append(out, l.objects[k])
		}
	}
	return out, nil
}

// kinds are those that the server of the scenarios serves. Deployments are in two versions, and in a group of old besides.
func kinds() []*resource.Descriptor {
	one := func(group, plural, kind string, namespaced bool, made func() resource.Object) *resource.Descriptor {
		return &resource.Descriptor{Group: group, Resource: plural, Kind: kind, ListKind: kind + "List", Namespaced: namespaced, Storage: "v1",
			Prefix: plural, Versions: []resource.Version{{Name: "v1", New: made}}}
	}
	deployments := one("apps", "deployments", "Deployment", true, func() resource.Object { return &appsv1.Deployment{} })
	deployments.Versions = append(deployments.Versions, resource.Version{Name: "v1beta1", New: deployments.Versions[0].New}, resource.Version{Name: "v0", Unserved: true})
	deployments.Subresources = []resource.Subresource{{Name: "status"}}
	old := one("extensions", "deployments", "Deployment", true, func() resource.Object { return &appsv1.Deployment{} })
	pods := one("", "pods", "Pod", true, func() resource.Object { return &corev1.Pod{} })
	pods.Versions[0].Default = func(obj resource.Object) {
		if p := obj.(*corev1.Pod); p.Spec.RestartPolicy == "" {
			p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}
	}
	return []*resource.Descriptor{
		pods, deployments, old,
		one("", "configmaps", "ConfigMap", true, func() resource.Object { return &corev1.ConfigMap{} }),
		one("", "namespaces", "Namespace", false, func() resource.Object { return &corev1.Namespace{} }),
		one("", "nodes", "Node", false, func() resource.Object { return &corev1.Node{} }),
		one("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview", false, func() resource.Object { return &authorizationv1.SubjectAccessReview{} }),
		one(group, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", false, func() resource.Object { return &admissionregistrationv1.ValidatingAdmissionPolicy{} }),
		one(group, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", false, func() resource.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{} }),
		one(group, "mutatingadmissionpolicies", "MutatingAdmissionPolicy", false, func() resource.Object { return &admissionregistrationv1.MutatingAdmissionPolicy{} }),
		one(group, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", false, func() resource.Object { return &admissionregistrationv1.MutatingAdmissionPolicyBinding{} }),
	}
}

// server is the host of the plug-ins, and both of them.
func server(t *testing.T, o Options) (*admit.Host, *Validating, *Mutating) {
	t.Helper()
	all := kinds()
	h := &admit.Host{
		Log: slog.New(slog.DiscardHandler), Ledger: extension.NewLedger(clock.RealClock{}), Metrics: prometheus.NewRegistry(),
		Kinds: func() []*resource.Descriptor { return all },
		Kind:  func(r schema.GroupResource) *resource.Descriptor { return kindOf(all, r) },
		Authorize: func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		},
		Types: func(*resource.Descriptor) (managedfields.TypeConverter, error) {
			return managedfields.NewDeducedTypeConverter(), nil
		},
	}
	v, m := NewValidating(o), NewMutating(o)
	if err := errors.Join(v.Join(h), m.Join(h)); err != nil {
		t.Fatal(err)
	}
	return h, v, m
}

func kindOf(all []*resource.Descriptor, r schema.GroupResource) *resource.Descriptor {
	for _, d := range all {
		if d.GroupResource() == r {
			return d
		}
	}
	return nil
}

func decoded(t *testing.T, all []*resource.Descriptor, in map[string]any) (resource.Object, *resource.Descriptor) {
	t.Helper()
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	obj, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		t.Fatalf("decode %s: %v", data, err)
	}
	obj.GetObjectKind().SetGroupVersionKind(*gvk)
	for _, d := range all {
		if d.Group == gvk.Group && d.Kind == gvk.Kind {
			return obj.(resource.Object), d
		}
	}
	t.Fatalf("%v is not served", gvk)
	return nil, nil
}

type said []string

func (s *said) AddWarning(_, text string) { *s = append(*s, text) }

// TestScenarios has requests meet policies: testdata/NAME.yaml are the scenarios, NAME.golden what came of each: the verdict of all
// mutating and then of all validating policies, what they made of the object, warnings, audit annotations, and what was counted.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []scenario
		if err := yaml.UnmarshalStrict(data, &all); err != nil {
			t.Fatalf("decode %s: %v", file, err)
		}
		var out strings.Builder
		for _, c := range all {
			fmt.Fprintf(&out, "# %s\n%s\n", c.Name, play(t, &c))
		}
		golden := strings.TrimSuffix(file, ".yaml") + ".golden"
		if *update {
			if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(string(want), out.String()); d != "" {
			t.Errorf("%s (-want +got):\n%s", golden, d)
		}
	}
}

func play(t *testing.T, c *scenario) string {
	t.Helper()
	h, v, m := server(t, Options{})
	l := &library{objects: map[string]resource.Object{}}
	for _, in := range c.Stored {
		obj, d := decoded(t, h.Kinds(), in)
		l.objects[d.Resource+"/"+obj.GetNamespace()+"/"+obj.GetName()] = obj
	}
	if err := errors.Join(v.Load(t.Context(), l), m.Load(t.Context(), l)); err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	l.unreadable = c.Unreadable
	annotations := map[string]string{}
	a := &admit.Attributes{
		Operation: admit.Operation(cmp.Or(c.Operation, "CREATE")), Version: cmp.Or(c.Version, "v1"), Subresource: c.Subresource, User: &user.DefaultInfo{Name: "alice"},
		Options: &metav1.CreateOptions{}, Warn: func(string) {}, Annotate: func(k, v string) { annotations[k] = v },
	}
	for _, side := range []struct {
		in  map[string]any
		out *resource.Object
	}{{c.Old, &a.Old}, {c.Object, &a.Object}} {
		if side.in != nil {
			*side.out, a.Descriptor = decoded(t, h.Kinds(), side.in)
			a.Name, a.Namespace = (*side.out).GetName(), (*side.out).GetNamespace()
		}
	}
	var warnings said
	ctx := warning.WithWarningRecorder(t.Context(), &warnings)
	before := encoded(t, a.Object)
	err := admit.Chain{m}.Mutate(ctx, l, a)
	if err == nil {
		err = admit.Chain{v}.Validate(ctx, l, a)
	}
	var out strings.Builder
	out.WriteString(verdictOf(err))
	if patch, err := jsonpatch.CreateMergePatch(before, encoded(t, a.Object)); err != nil {
		t.Fatal(err)
	} else if string(patch) != "{}" {
		fmt.Fprintf(&out, "changed: %s\n", patch)
	}
	if a.Round > 0 {
		out.WriteString("called again\n")
	}
	for _, w := range warnings {
		fmt.Fprintf(&out, "warning: %s\n", w)
	}
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		fmt.Fprintf(&out, "annotation: %s = %s\n", k, annotations[k])
	}
	for line := range strings.Lines(admittest.Counts(t, h.Metrics.(prometheus.Gatherer)) + "\n") {
		if strings.Contains(line, "_check_total") {
			out.WriteString("counted: " + strings.TrimPrefix(line, "apiserver_"))
		}
	}
	return out.String()
}

func verdictOf(err error) string {
	if err == nil {
		return "allowed\n"
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return fmt.Sprintf("error: %v\n", err)
	}
	s := status.Status()
	out := fmt.Sprintf("%d %s: %s\n", s.Code, s.Reason, s.Message)
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			out += fmt.Sprintf("cause: %s\n", c.Message)
		}
	}
	return out
}

func encoded(t *testing.T, obj runtime.Object) []byte {
	t.Helper()
	if obj == nil {
		return []byte("{}")
	}
	data, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
