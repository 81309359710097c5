// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/golden"
	"github.com/mortise-dev/mortise/resource"
)

// scenario is one request and the policies that apply to it.
type scenario struct {
	Name        string           `json:"name"`
	Stored      []map[string]any `json:"stored"` // policies, bindings, parameters, namespaces
	Unreadable  string           `json:"unreadable"`
	Operation   string           `json:"operation"` // CREATE when empty
	Version     string           `json:"version"`   // v1 when empty
	Subresource string           `json:"subresource"`
	Namespace   string           `json:"namespace"` // of the request; the object's own when empty
	Object      map[string]any   `json:"object"`
	Old         map[string]any   `json:"old"`
}

// library is a backend of a few objects. Reads of the unreadable resource fail.
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
	for _, k := range slices.Backward(slices.Sorted(maps.Keys(l.objects))) { // the order of a list is not guaranteed
		if strings.HasPrefix(k, r.Resource+"/") && (namespace == "" || strings.HasPrefix(k, r.Resource+"/"+namespace+"/")) {
			out = append(out, l.objects[k])
		}
	}
	return out, nil
}

// kinds returns the kinds of the scenarios' server. Deployments have two versions, and another one in an old group.
func kinds() []*resource.Descriptor {
	one := func(group, plural, kind string, namespaced bool, made func() resource.Object) *resource.Descriptor {
		return &resource.Descriptor{Group: group, Resource: plural, Kind: kind, ListKind: kind + "List", Namespaced: namespaced, Storage: "v1",
			Prefix: plural, Versions: []resource.Version{{Name: "v1", New: made}}}
	}
	deployments := one("apps", "deployments", "Deployment", true, func() resource.Object { return &appsv1.Deployment{} })
	deployments.Versions = append(deployments.Versions, resource.Version{Name: "v1beta1", New: deployments.Versions[0].New},
		resource.Version{Name: "v0", Unserved: true})
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
		one("authorization.k8s.io", "subjectaccessreviews", "SubjectAccessReview", false,
			func() resource.Object { return &authorizationv1.SubjectAccessReview{} }),
		one(group, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", false,
			func() resource.Object { return &admissionregistrationv1.ValidatingAdmissionPolicy{} }),
		one(group, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", false,
			func() resource.Object { return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{} }),
		one(group, "mutatingadmissionpolicies", "MutatingAdmissionPolicy", false,
			func() resource.Object { return &admissionregistrationv1.MutatingAdmissionPolicy{} }),
		one(group, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", false,
			func() resource.Object { return &admissionregistrationv1.MutatingAdmissionPolicyBinding{} }),
	}
}

// server returns the host of the plug-ins, and both plug-ins.
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

// TestActions covers the results of verdicts: denials, warnings, audit annotations and their texts.
func TestActions(t *testing.T) { playFile(t, "actions") }

// TestBudgets covers the cost limits of expressions.
func TestBudgets(t *testing.T) { playFile(t, "budgets") }

// TestFailures covers policies and bindings that cannot be evaluated.
func TestFailures(t *testing.T) { playFile(t, "failure") }

// TestMatching covers the requests that a policy and its bindings match.
func TestMatching(t *testing.T) { playFile(t, "matching") }

// TestMutations covers the changes of objects by mutating policies.
func TestMutations(t *testing.T) { playFile(t, "mutations") }

// TestParams covers the parameters with which a policy is evaluated.
func TestParams(t *testing.T) { playFile(t, "params") }

// TestEveryFileIsPlayed checks that each file of scenarios has a test above.
func TestEveryFileIsPlayed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	want := []string{
		"testdata/actions.yaml", "testdata/budgets.yaml", "testdata/failure.yaml", "testdata/matching.yaml", "testdata/mutations.yaml",
		"testdata/params.yaml",
	}
	if d := gocmp.Diff(want, files); err != nil || d != "" {
		t.Errorf("%v, %s", err, d)
	}
}

// playFile plays the scenarios in testdata/NAME.yaml. NAME.golden has the results of each: the verdicts of all mutating
// and then of all validating policies, their changes of the object, warnings, audit annotations, metrics, and the steps
// in the request's trace.
func playFile(t *testing.T, name string) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []scenario
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, c := range all {
		fmt.Fprintf(&out, "# %s\n%s\n", c.Name, play(t, &c))
	}
	golden.Compare(t, "testdata/"+name+".golden", out.String())
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
		Operation: admit.Operation(cmp.Or(c.Operation, "CREATE")), Version: cmp.Or(c.Version, "v1"), Subresource: c.Subresource,
		User:    &user.DefaultInfo{Name: "alice"},
		Options: &metav1.CreateOptions{}, Warn: func(string) {}, Annotate: func(k, v string) { annotations[k] = v },
	}
	for _, side := range []struct {
		in  map[string]any
		out *resource.Object
	}{{c.Old, &a.Old}, {c.Object, &a.Object}} {
		if side.in != nil {
			*side.out, a.Descriptor = decoded(t, h.Kinds(), side.in)
			a.Name, a.Namespace = (*side.out).GetName(), cmp.Or(c.Namespace, (*side.out).GetNamespace())
		}
	}
	var warnings said
	ctx := warning.WithWarningRecorder(t.Context(), &warnings)
	before := encoded(t, a.Object)
	var err error
	steps := traced(ctx, t, func(ctx context.Context) {
		if err = (admit.Chain{m}).Mutate(ctx, l, a); err == nil {
			err = admit.Chain{v}.Validate(ctx, l, a)
		}
	})
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
	out.WriteString(steps)
	return out.String()
}

// traced calls f with a context that carries a trace, and returns the recorded steps, one a line.
func traced(ctx context.Context, t *testing.T, f func(context.Context)) string {
	t.Helper()
	recorder := explain.New(explain.Options{})
	kept := recorder.Begin(&request.RequestInfo{Verb: "create", IsResourceRequest: true, APIVersion: "v1", Resource: "pods"}, time.Now())
	f(explain.With(ctx, kept))
	kept.Finish(httptest.NewRequest(http.MethodPost, "/", nil), explain.Answer{ID: "a", Code: http.StatusCreated})
	w := httptest.NewRecorder()
	recorder.Handler(nil, func(_ http.ResponseWriter, _ *http.Request, err error) int {
		t.Fatal(err)
		return 0
	}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, trace.Route+"/a", nil))
	var view trace.View
	if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil || len(view.Traces) != 1 {
		t.Fatalf("%d traces, %v: %s", len(view.Traces), err, w.Body)
	}
	var out strings.Builder
	for _, s := range view.Traces[0].Steps {
		line := fmt.Sprintf("traced: %s %s %s by %q: %s %s", s.Phase, s.Kind, s.Name, s.Configuration, s.Result, s.Reason+s.Untold)
		out.WriteString(strings.TrimSpace(line) + "\n")
		for _, c := range s.Changes {
			fmt.Fprintf(&out, "traced: - %s %s: %v for %v\n", c.Op, c.Field, c.Value, c.Was)
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
