// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/resource"
)

const (
	a      = `{"name":"a.example.com"}`
	b      = `{"name":"b.example.com"}`
	none   = "none" // without an annotation
	before = `,"since":"2027-01-15T08:00:00.000000Z"`
	now    = `,"since":"2027-01-15T08:00:10.000000Z"`
)

// list returns an annotation with pending initializers.
func list(more string, pending ...string) string {
	return `{"pending":[` + strings.Join(pending, ",") + `]` + more + `}`
}

// at sets the plug-in's clock to ten seconds after "before", and the authorizer's decision.
func (p *Plugin) at(decision authorizer.Decision, err error) *Plugin {
	p.clock = clocktesting.NewFakeClock(time.Date(2027, 1, 15, 8, 0, 10, 0, time.UTC))
	p.host.Authorize = func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return decision, "nobody may", err
	}
	return p
}

// annotated returns a config map with this annotation and another one.
func annotated(value string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Namespace: "ns", Annotations: map[string]string{"other": "x"}}}
	if value != none {
		m.Annotations[v1alpha1.InitializersAnnotation] = value
	}
	return m
}

// outcome returns the annotation after a write, or the error.
func outcome(t *testing.T, p *Plugin, a *admit.Attributes, b resource.Backend) string {
	t.Helper()
	if err := p.Mutate(t.Context(), b, a); err != nil {
		return err.Error()
	}
	if a.Object.GetAnnotations()["other"] != "x" {
		t.Errorf("the other annotation is gone: %v", a.Object.GetAnnotations())
	}
	if value, ok := a.Object.GetAnnotations()[v1alpha1.InitializersAnnotation]; ok {
		return value
	}
	return none
}

// TestUpdates covers what an object waits for after a user with the verb initialize has updated it.
func TestUpdates(t *testing.T) {
	const (
		invalid  = `ConfigMap "m" is invalid: metadata.annotations[extension.mortise.dev/initializers]`
		ended    = `: field is immutable once initialization has completed`
		rejected = `,"result":{"metadata":{},"status":"Failure","message":"no","reason":"Odd","code":500}`
	)
	result := func(text string) string { return `,"result":{"metadata":{},` + text + `}` }
	for _, c := range []struct{ name, was, is, want string }{
		{"nothing", list(before, a, b), list(before, a, b), list(before, a, b)},
		{"its settings", list(before, a), list(before, `{"name":"a.example.com","deadlineSeconds":9}`), list(before, a)},
		{"the first is through", list(before, a, b), list(before, b), list(now, b)},
		{"the last is through", list(before, b), list(before), none},
		{"the last is through, by taking the annotation away", list(before, b), none, none},
		{"the second is through first", list(before, a, b), list(before, a), invalid + `.pending: Invalid value: ["a.example.com"]: ` +
			`initializers come off one at a time and in order: the next of ["a.example.com" "b.example.com"] is "a.example.com"`},
		{"all at once", list(before, a, b), none, invalid + `.pending: Invalid value: []: initializers come off one at a time and in order: ` +
			`the next of ["a.example.com" "b.example.com"] is "a.example.com"`},
		{"one more", list(before, a), list(before, a, b), invalid + `.pending: Invalid value: ["a.example.com","b.example.com"]: ` +
			`initializers come off one at a time and in order: the next of ["a.example.com"] is "a.example.com"`},
		{"no list", list(before, a), "7",
			invalid + `: Invalid value: "7": decode initializers: json: cannot unmarshal number into Go value of type v1alpha1.Initializers`},

		{"rejected", list(before, a, b), list(rejected, a, b), list(before+rejected, a, b)},
		{"rejected and through", list(before, a, b), list(rejected, b), list(before+rejected, a, b)},
		{"rejected by default", list(before, a), list(`,"result":{}`, a),
			list(before+result(`"status":"Failure","message":"rejected by initializer a.example.com","reason":"Forbidden","code":403`), a)},
		{"rejected with a code", list(before, a), list(`,"result":{"code":400}`, a),
			list(before+result(`"status":"Failure","message":"rejected by initializer a.example.com","code":400`), a)},
		{"rejected with the code of Forbidden", list(before, a), list(`,"result":{"code":403,"reason":"Odd"}`, a),
			list(before+result(`"status":"Failure","message":"rejected by initializer a.example.com","reason":"Odd","code":403`), a)},
		{"rejected with the greatest code", list(before, a), list(`,"result":{"status":"Failure","code":599,"message":"no"}`, a),
			list(before+result(`"status":"Failure","message":"no","code":599`), a)},
		{"rejected with a code too great", list(before, a), list(`,"result":{"code":600}`, a),
			invalid + ".result.code: Invalid value: 600: must be between 400 and 599"},
		{"rejected with a code of success", list(before, a), list(`,"result":{"code":399}`, a),
			invalid + ".result.code: Invalid value: 399: must be between 400 and 599"},
		{"rejected with success", list(before, a), list(`,"result":{"status":"Success"}`, a),
			invalid + `.result.status: Invalid value: "Success": must be 'Failure'`},
		{"rejected by the second", list(before, a, b), list(rejected, a), invalid + `.pending: Invalid value: ["a.example.com"]: ` +
			`initializers come off one at a time and in order: the next of ["a.example.com" "b.example.com"] is "a.example.com"`},
		{"after it was rejected", list(before+rejected, a), list(before+rejected, a), invalid + ": Forbidden: the object has been rejected"},

		{"a list, of one that waits for nobody", none, list("", a),
			invalid + `: Invalid value: "{\"pending\":[{\"name\":\"a.example.com\"}]}"` + ended},
		{"no list, of one that waits for nobody", none, "7", invalid + `: Invalid value: "7"` + ended},
		{"an empty list, of one that waits for nobody", none, list(""), none},
		{"nothing, of one that waits for nobody", none, none, none},
		{"nothing, of one with an empty list", list(""), list(""), list("")},
		{"another empty list", list(""), list(before), none},
		{"nothing, of what is no list", "7", "7", "7"},
		{"what is no list, taken away", "7", none, none},
		{"a list in place of what is none", "7", list("", a),
			invalid + `: Invalid value: "{\"pending\":[{\"name\":\"a.example.com\"}]}"` + ended},
	} {
		write := creation("")
		write.Operation, write.Old, write.Object = admit.Update, annotated(c.was), annotated(c.is)
		if d := cmp.Diff(c.want, outcome(t, configured().at(authorizer.DecisionAllow, nil), write, nil)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
	write := creation("")
	write.Operation, write.Object = admit.Update, annotated(list("", a))
	if got := outcome(t, configured(), write, nil); got != list("", a) {
		t.Errorf("an update that knows no old object: %s", got)
	}
}

// TestWhoMayInitialize checks that a user without the verb initialize can neither change a waiting object nor set the
// initializers of a new one. A decision to allow counts despite other errors.
func TestWhoMayInitialize(t *testing.T) {
	broken := errors.New("disk full")
	for _, c := range []struct {
		decision authorizer.Decision
		err      error
		want     string // empty: it is allowed
	}{
		{authorizer.DecisionAllow, nil, ""},
		{authorizer.DecisionAllow, broken, ""},
		{authorizer.DecisionNoOpinion, nil, `configmaps "m" is forbidden: DENIED: nobody may`},
		{authorizer.DecisionDeny, nil, `configmaps "m" is forbidden: DENIED: nobody may`},
		{authorizer.DecisionDeny, broken, "Internal error occurred: disk full"},
	} {
		for denied, write := range map[string]*admit.Attributes{
			"create with initializers denied":         {Operation: admit.Create, Object: annotated(list("", a))},
			"update to uninitialized resource denied": {Operation: admit.Update, Object: annotated(list("", a)), Old: annotated(list("", a))},
		} {
			from := creation("")
			write.Descriptor, write.Version, write.Namespace, write.Name, write.User = from.Descriptor, "v1", "ns", "m",
				&user.DefaultInfo{Name: "jane"}
			p := configured().at(c.decision, c.err)
			decide := p.host.Authorize
			asked := 0
			p.host.Authorize = func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				asked++
				what := []string{a.GetUser().GetName(), a.GetVerb(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(), a.GetNamespace(), a.GetName()}
				if got := strings.Join(what, " "); got != "jane initialize  v1 configmaps ns m" || !a.IsResourceRequest() {
					t.Errorf("asked whether %s", got)
				}
				return decide(ctx, a)
			}
			got := outcome(t, p, write, nil)
			want := strings.Replace(c.want, "DENIED", denied, 1)
			if want == "" && got[0] != '{' || want != "" && got != want || asked != 1 {
				t.Errorf("%v, %v, %s: %s after %d questions", c.decision, c.err, denied, got, asked)
			}
		}
	}
}

// TestNewLists checks that a user with the verb initialize may set the initializers of a new object. The server sets
// the other fields.
func TestNewLists(t *testing.T) {
	const invalid = `ConfigMap "m" is invalid: metadata.annotations[extension.mortise.dev/initializers]`
	own := &v1alpha1.Initializer{Name: "own.example.com", DeadlineSeconds: 5, FailurePolicy: v1alpha1.Ignore}
	for _, c := range []struct{ name, is, want string }{
		{"as its configuration has it", list(before, `{"name":"own.example.com","deadlineSeconds":99,"failurePolicy":"Fail"}`),
			list(now, `{"name":"own.example.com","deadlineSeconds":5,"failurePolicy":"Ignore"}`)},
		{"of no configuration", list("", `{"name":"a.b.c","deadlineSeconds":99,"failurePolicy":"Ignore"}`),
			list(now, `{"name":"a.b.c","deadlineSeconds":30,"failurePolicy":"Fail"}`)},
		{"of nobody", list(""), none},
		{"no list", "7",
			invalid + `: Invalid value: "7": decode initializers: json: cannot unmarshal number into Go value of type v1alpha1.Initializers`},
		{"rejected", list(`,"result":{}`, a), invalid + ".result: Forbidden: a new object cannot have been rejected"},
		{"twice the same", list("", a, b, a), invalid + `.pending[2].name: Duplicate value: "a.example.com"`},
		{"a short name", list("", `{"name":"a"}`),
			invalid + `.pending[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots`},
	} {
		p := configured().at(authorizer.DecisionAllow, nil)
		rules := append(*p.rules.Load(), newRule(own))
		p.rules.Store(&rules)
		write := creation("")
		write.Object = annotated(c.is)
		if d := cmp.Diff(c.want, outcome(t, p, write, nil)); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

// TestPodsThatRun checks that a mirror pod, which runs already, does not wait.
func TestPodsThatRun(t *testing.T) {
	for _, c := range []struct {
		plural, annotation string
		waits              bool
	}{{"pods", "", true}, {"pods", corev1.MirrorPodAnnotationKey, false}, {"configmaps", corev1.MirrorPodAnnotationKey, true}} {
		p, write := configured(), creation("")
		write.Descriptor.Resource = c.plural
		write.Object.SetAnnotations(map[string]string{c.annotation: "x"})
		if err := p.Mutate(t.Context(), nil, write); err != nil || v1alpha1.Uninitialized(write.Object) != c.waits {
			t.Errorf("%s with %q: %v, %v", c.plural, c.annotation, err, write.Object.GetAnnotations())
		}
	}
}

// TestWithoutConfigurations checks that without configurations no object waits.
func TestWithoutConfigurations(t *testing.T) {
	p := New(clocktesting.NewFakeClock(time.Now()))
	if p.Name() != "Initializers" {
		t.Errorf("it is called %s", p.Name())
	}
	write := creation("")
	if err := p.Mutate(t.Context(), nil, write); err != nil || len(write.Object.GetAnnotations()) > 0 {
		t.Errorf("%v, %v", err, write.Object.GetAnnotations())
	}
}

// holding is a backend of one object.
type holding struct {
	resource.Backend
	obj resource.Object
}

func (h holding) Get(context.Context, schema.GroupResource, string, string) (resource.Object, error) {
	return h.obj, nil
}

// TestWritesBelow checks that only users with the verb initialize change a waiting object through a subresource. Writes
// that do not change it, and those that complete its deletion, need no such permission.
func TestWritesBelow(t *testing.T) {
	waiting, done, ending := annotated(list("", a)), annotated(none), annotated(list("", a))
	ending.DeletionTimestamp = &metav1.Time{}
	const (
		denied = `configmaps "m" is forbidden: update to uninitialized resource denied: nobody may`
		byWay  = `is forbidden: initializers cannot be set by way of binding`
	)
	for _, c := range []struct {
		name        string
		operation   admit.Operation
		subresource string
		old, stored resource.Object
		sets        string // the annotation of the write
		want        string
	}{
		{"its status", admit.Update, "status", waiting, nil, list("", a), denied},
		{"the status of one that is done", admit.Update, "status", done, nil, none, ""},
		{"the status of one that is deleted", admit.Update, "status", ending, nil, list("", a), ""},
		{"the status of none", admit.Update, "status", nil, nil, none, ""},
		{"its scale", admit.Update, "scale", done, waiting, none, denied},
		{"the scale of one that is done", admit.Update, "scale", done, done, none, ""},
		{"a scale that says what is waited for", admit.Update, "scale", done, done, list("", a), ""},
		{"what nobody knows", admit.Update, "unknown", done, waiting, none, denied},
		{"its binding", admit.Create, "binding", nil, waiting, none, denied},
		{"the binding of one that is done", admit.Create, "binding", nil, done, none, ""},
		{"the binding of one that is deleted", admit.Create, "binding", nil, ending, none, ""},
		{"a binding that says what is waited for", admit.Create, "binding", nil, done, list("", a), byWay},
		{"a token", admit.Create, "token", nil, waiting, none, ""},
		{"its deletion", admit.Delete, "status", waiting, waiting, list("", a), ""},
	} {
		write := creation("")
		write.Descriptor.Subresources = append(write.Descriptor.Subresources, resource.Subresource{Name: "scale"})
		write.Operation, write.Subresource, write.Object = c.operation, c.subresource, annotated(c.sets)
		if write.Old = c.old; c.old == nil {
			write.Old = nil
		}
		got := ""
		if err := configured().Mutate(t.Context(), holding{obj: c.stored}, write); err != nil {
			got = err.Error()
		}
		if c.want == "" && got != "" || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	write := creation("")
	write.Operation, write.Subresource, write.Old, write.Object = admit.Update, "status", annotated(none), annotated("")
	if got := outcome(t, configured(), write, nil); got != none {
		t.Errorf("an empty annotation that is written by way of status: %s", got)
	}
}

// inJSON decodes the objects in traces.
type inJSON struct{}

func (inJSON) Stored(_ schema.GroupResource, _ string, data []byte) (m map[string]any, err error) {
	err = json.Unmarshal(data, &m)
	return m, err
}

func (inJSON) Sent(schema.GroupResource, string, string, []byte) (said, filled map[string]any, err error) {
	return nil, nil, errors.New("nothing was sent")
}

func (inJSON) Live(context.Context, schema.GroupResource, string, string) (map[string]any, string, error) {
	return nil, "", errors.New("nothing is there")
}

// TestTraces checks that the trace of a request contains what the plug-in made the object wait for, if that changed.
func TestTraces(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(*admit.Attributes)
		fails bool
		want  []string
	}{
		{"a new object", func(*admit.Attributes) {}, false, []string{"mutate plug-in Initializers changed /metadata/annotations"}},
		{"a new object that matches nothing", func(a *admit.Attributes) { a.Object.SetLabels(nil) }, false, nil},
		{"a list that may not be", func(a *admit.Attributes) { a.Object = annotated(list("", b)) }, true, nil},
		{"an empty list on what is done", func(a *admit.Attributes) {
			a.Operation, a.Old, a.Object = admit.Update, annotated(none), annotated(list(""))
		}, false, []string{"mutate plug-in Initializers changed /metadata/annotations/extension.mortise.dev~1initializers"}},
	} {
		r := explain.New(explain.Options{Started: time.Now()})
		info := &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIVersion: "v1", Resource: "configmaps", Namespace: "ns",
			Name: "m"}
		traced, write := r.Begin(info, time.Now()), creation("")
		c.write(write)
		if err := configured().Mutate(explain.With(t.Context(), traced), nil, write); (err != nil) != c.fails {
			t.Errorf("%s: %v", c.name, err)
		}
		traced.Finish(httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/ns/configmaps", nil), explain.Answer{ID: "id", Code: 201})
		w := httptest.NewRecorder()
		refuse := func(_ http.ResponseWriter, _ *http.Request, err error) int { t.Error(err); return 0 }
		r.Handler(inJSON{}, refuse).ServeHTTP(w, httptest.NewRequest(http.MethodGet, trace.Route, nil))
		var view trace.View
		if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil || len(view.Traces) != 1 {
			t.Fatalf("%v: %s", err, w.Body)
		}
		var got []string
		for _, s := range view.Traces[0].Steps {
			line := fmt.Sprint(s.Phase, " ", s.Kind, " ", s.Name, " ", s.Result)
			for _, change := range s.Changes {
				line += " " + change.Path
			}
			got = append(got, line)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}
