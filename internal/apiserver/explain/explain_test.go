// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/resource"
)

// pods is a kind that this test stores as JSON.
func pods() *resource.Descriptor {
	return kind("pods", func() resource.Object { return &corev1.Pod{} })
}

func kind(plural string, empty func() resource.Object) *resource.Descriptor {
	return &resource.Descriptor{Resource: plural, Storage: "v1", Namespaced: true, Codec: codec{empty},
		Versions: []resource.Version{{Name: "v1", New: empty}}}
}

type codec struct{ empty func() resource.Object }

func (codec) Encode(obj resource.Object) ([]byte, error) { return json.Marshal(obj) }

func (c codec) Decode(b []byte) (resource.Object, error) {
	obj := c.empty()
	return obj, json.Unmarshal(b, obj)
}

// objects decodes JSON, and defaults the restart policy.
type objects struct{ live map[string]any }

func (objects) Stored(_ schema.GroupResource, _ string, data []byte) (m map[string]any, err error) {
	err = json.Unmarshal(data, &m)
	return m, err
}

func (objects) Sent(_ schema.GroupResource, _, _ string, body []byte) (said, filled map[string]any, err error) {
	if err = json.Unmarshal(body, &said); err != nil {
		return nil, nil, err
	}
	if err = json.Unmarshal(body, &filled); err != nil {
		return nil, nil, err
	}
	if spec, ok := filled["spec"].(map[string]any); ok && spec["restartPolicy"] == nil {
		spec["restartPolicy"] = "Always"
	}
	return said, filled, nil
}

func (o objects) Live(context.Context, schema.GroupResource, string, string) (map[string]any, string, error) {
	if o.live == nil {
		return nil, "", apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "web")
	}
	var own map[string]any
	b, err := json.Marshal(o.live)
	if err == nil {
		err = json.Unmarshal(b, &own)
	}
	return own, "v1", err
}

type server struct {
	*Recorder
	t   *testing.T
	now time.Time
	obj objects
}

func newServer(t *testing.T, bytes int64) *server {
	s := &server{t: t, now: time.Unix(1_800_000_000, 0)}
	s.Recorder = New(Options{Bytes: bytes, Started: s.now, Mutators: []string{"ServiceAccount", "Priority", mutatingWebhooks},
		Validators: []string{"Priority", validatingWebhooks},
		Now:        func() time.Time { s.now = s.now.Add(time.Millisecond); return s.now }})
	return s
}

func (s *server) begin(verb, plural, subresource, name string) *Trace {
	i := &request.RequestInfo{IsResourceRequest: true, Verb: verb, APIVersion: "v1", Resource: plural, Subresource: subresource,
		Namespace: "shop", Name: name}
	if !s.Traces(i) {
		s.t.Fatalf("%s of %s is no write", verb, plural)
	}
	return s.Begin(i, s.now)
}

func (s *server) finish(t *Trace, id string, code int) {
	t.Finish(httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/shop/"+t.info.Resource, nil),
		Answer{ID: id, Code: code, Source: "127.0.0.1:1", Took: time.Millisecond})
}

func (s *server) ask(query string) (int, []byte) {
	w := httptest.NewRecorder()
	s.Handler(s.obj, func(w http.ResponseWriter, _ *http.Request, err error) int {
		st := apierrors.APIStatus(nil)
		if !errors.As(err, &st) {
			s.t.Fatalf("refused by %v", err)
		}
		w.WriteHeader(int(st.Status().Code))
		_, _ = w.Write([]byte(err.Error()))
		return int(st.Status().Code)
	}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, trace.Route+query, nil))
	return w.Code, w.Body.Bytes()
}

func (s *server) view(query string) trace.View {
	s.t.Helper()
	code, body := s.ask(query)
	var v trace.View
	if err := json.Unmarshal(body, &v); err != nil || code != http.StatusOK {
		s.t.Fatalf("%s: %d, %v: %s", query, code, err, body)
	}
	return v
}

func (s *server) field(path string) trace.Field {
	s.t.Helper()
	code, body := s.ask("?resource=pods&namespace=shop&name=web&field=" + path)
	var f trace.Field
	if err := json.Unmarshal(body, &f); err != nil || code != http.StatusOK {
		s.t.Fatalf("%s: %d, %v: %s", path, code, err, body)
	}
	return f
}

func pod(images ...string) *corev1.Pod {
	p := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u"}}
	for i, image := range images {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: image})
	}
	return p
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// create creates a pod as a server does: a plug-in sets the service account, a webhook adds a container.
func (s *server) create() {
	t := s.begin("create", "pods", "", "")
	t.Asks("kubernetes-admin")
	t.Asks("jane")
	t.DecidedBy("RBAC")
	t.Decided(true, "a role")
	t.Queued("global-default", "global")
	t.Enter(Decode)
	given := pod("nginx")
	t.Body("application/json", []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[{"name":"c0","image":"nginx"}]}}`))
	given.Spec.RestartPolicy = corev1.RestartPolicyAlways
	t.Enter(Mutate)
	t.Given(pods(), "", given)
	given.Spec.ServiceAccountName = "default"
	t.Mutated("ServiceAccount", time.Microsecond, given, nil)
	t.Mutated("Priority", time.Microsecond, given, nil)
	patched := given.DeepCopy()
	patched.Spec.Containers = append([]corev1.Container{{Name: "sidecar", Image: "proxy"}}, patched.Spec.Containers...)
	filled := patched.DeepCopy()
	filled.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
	t.Patched(encoded(s.t, given), encoded(s.t, patched), encoded(s.t, filled))
	t.Step(Step{Phase: trace.Mutate, Kind: trace.Webhook, Configuration: "inject", Name: "inject.example.com", Result: trace.Changed,
		Took: time.Millisecond})
	t.Mutated(mutatingWebhooks, time.Millisecond, filled, nil)
	t.Enter(Validate)
	t.Validated(0, "Priority", time.Microsecond, nil)
	t.Step(Step{Phase: trace.Validate, Kind: trace.Webhook, Configuration: "check", Name: "check.example.com", Result: trace.Allowed,
		Took: time.Millisecond})
	t.Validated(1, validatingWebhooks, time.Millisecond, nil)
	t.Enter(Store)
	filled.Generation = 1
	t.Committed(pods(), nil, filled, nil, encoded(s.t, filled), 7)
	s.finish(t, "create-1", http.StatusCreated)
}

// update updates the sidecar's image.
func (s *server) update() {
	t := s.begin("update", "pods", "", "web")
	t.Asks("joe")
	was := pod("proxy", "nginx")
	is := pod("proxy:2", "nginx")
	t.Body("application/json", encoded(s.t, is))
	t.Enter(Mutate)
	t.Given(pods(), "", is)
	t.Mutated("Priority", time.Microsecond, is, nil)
	t.Committed(pods(), was, is, encoded(s.t, was), encoded(s.t, is), 8)
	s.finish(t, "update-1", http.StatusOK)
	s.obj.live = map[string]any{}
	if err := json.Unmarshal(encoded(s.t, is), &s.obj.live); err != nil {
		s.t.Fatal(err)
	}
}

func TestTraceOfACreate(t *testing.T) {
	s := newServer(t, 1<<20)
	s.create()
	v := s.view("/create-1")
	if len(v.Traces) != 1 {
		t.Fatalf("got %d traces", len(v.Traces))
	}
	got := v.Traces[0]
	if got.User != "kubernetes-admin" || got.As != "jane" || got.Name != "web" || got.Code != 201 || got.Refused != "" || got.Brief ||
		got.Redacted {
		t.Errorf("got %+v", got)
	}
	if diff := cmp.Diff(&trace.Decision{Allowed: true, By: "RBAC", Reason: "a role"}, got.Decision); diff != "" {
		t.Error(diff)
	}
	var steps []string
	for _, st := range got.Steps {
		line := strings.TrimSpace(strings.Join([]string{st.Phase, st.Kind, st.Configuration, st.Name, st.Result}, " "))
		for _, c := range st.Changes {
			line += "; " + c.Op + " " + c.Field
		}
		steps = append(steps, line)
	}
	want := []string{
		"mutate request   changed; add apiVersion; add kind; add metadata; add spec",
		"mutate defaulting   changed; add spec.restartPolicy",
		"mutate plug-in  ServiceAccount changed; add spec.serviceAccountName",
		"mutate webhook inject inject.example.com changed; add spec.containers[0]",
		"mutate defaulting   changed; add spec.containers[0].imagePullPolicy",
		"mutate server   changed; add metadata.generation",
		"validate plug-in  Priority allowed",
		"validate webhook check check.example.com allowed",
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var stages []string
	for _, st := range got.Stages {
		stages = append(stages, st.Name)
	}
	if diff := cmp.Diff([]string{"receive", "decode", "mutate", "validate", "store", "respond"}, stages); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]trace.Object{{Resource: "pods", Namespace: "shop", Name: "web", UID: "u", Revision: 7, Action: "created"}},
		got.Objects); diff != "" {
		t.Error(diff)
	}
}

func TestFieldIsToldByWhomItWasSet(t *testing.T) {
	s := newServer(t, 1<<20)
	s.create()
	s.update()
	for path, want := range map[string][]string{
		"spec.containers[0].image":            {"update-1 request proxy:2", "create-1 webhook inject.example.com proxy, request nginx"},
		"spec.containers[name=c1].image":      nil, // the update did not change it
		"spec.containers[name=sidecar].image": {"create-1 webhook inject.example.com proxy"},
		"spec.serviceAccountName":             {"create-1 plug-in ServiceAccount default"},
		"spec.restartPolicy":                  {"create-1 defaulting Always"},
		"metadata.generation":                 {"create-1 server 1"},
		"metadata.labels":                     nil,
	} {
		f := s.field(path)
		var got []string
		for _, x := range f.Settings {
			line := fmt.Sprintf("%s %s %s%v", x.AuditID, x.By.Kind, strings.TrimLeft(x.By.Name+" ", " "), x.Value)
			for _, h := range x.Before {
				line += fmt.Sprintf(", %s %v", h.Kind, h.Value)
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if f := s.field("metadata.labels"); f.Present || f.Note == "" {
		t.Errorf("a field that is not there: %+v", f)
	}
	if f := s.field("spec.serviceAccountName"); f.Present || !strings.Contains(f.Note, "a later write") {
		t.Errorf("a field that has gone by a write that is not kept: %+v", f)
	}
}

func TestFieldFallsBackToManagedFields(t *testing.T) {
	s := newServer(t, 1<<20)
	s.obj.live = map[string]any{}
	if err := json.Unmarshal([]byte(`{"metadata": {"name": "web", "labels": {"a/b": "x"}, "managedFields": [
		{"manager": "old", "operation": "Update", "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:a/b": {}}}, "f:spec": {"f:containers": {"k:{\"name\":\"c1\"}": {".": {}, "f:image": {}}}}}},
		{"manager": "new", "operation": "Apply", "time": "2026-02-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:tolerations": {}, "f:containers": {"k:{\"name\":\"c1\"}": {"f:image": {}}}}, "f:metadata": {"f:finalizers": {"v:\"z\"": {}}}}},
		{"manager": "kubelet", "operation": "Update", "subresource": "status", "time": "2026-03-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:phase": {}}}}],
		"finalizers": ["y", "z"]},
		"spec": {"containers": [{"name": "c0", "image": "a"}, {"name": "c1", "image": "b"}], "tolerations": [{"key": "k"}]}, "status": {"phase": "Running"}}`), &s.obj.live); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{
		`metadata.labels["a/b"]`: {"old"}, "spec.containers[1].image": {"new", "old"}, "spec.containers[0].image": nil,
		"spec.containers[name=c1]": {"new", "old"},
		"spec.tolerations[0].key":  {"new"}, "status.phase": {"kubelet"}, "metadata.finalizers[1]": {"new"}, "metadata.finalizers[0]": nil,
		"spec.nodeName": nil,
	} {
		var got []string
		for _, m := range s.field(strings.ReplaceAll(path, `"`, "%22")).Managers {
			got = append(got, m.Manager)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

func TestRejectedAreListed(t *testing.T) {
	s := newServer(t, 1<<20)
	s.create()
	denied := s.begin("create", "pods", "", "")
	denied.Asks("jane")
	denied.Enter(Validate)
	denied.Step(Step{Phase: trace.Validate, Kind: trace.Webhook, Configuration: "check", Name: "check.example.com", Result: trace.Denied,
		Reason: "no team"})
	denied.Validated(1, validatingWebhooks, time.Millisecond, errors.New("no team"))
	denied.Refused(&metav1.Status{Reason: metav1.StatusReasonForbidden, Message: "denied: no team"})
	s.finish(denied, "denied-1", http.StatusForbidden)
	plugin := s.begin("create", "pods", "", "")
	plugin.Enter(Mutate)
	plugin.Given(pods(), "", pod("a"))
	plugin.Mutated("Priority", time.Millisecond, pod("a"), errors.New("no such class"))
	plugin.Refused(&metav1.Status{Reason: metav1.StatusReasonForbidden, Message: "no such class"})
	s.finish(plugin, "denied-2", http.StatusForbidden)
	waits := s.begin("create", "pods", "", "")
	waits.Enter(FlowControl)
	s.finish(waits, "denied-3", http.StatusTooManyRequests)
	v := s.view("?rejected=true&since=10m")
	var got []string
	for _, x := range v.Traces {
		line := x.AuditID + " " + x.Name + " " + x.Refused
		for _, st := range x.Steps {
			line += " " + st.Kind + " " + st.Name + " " + st.Result + " " + st.Reason
		}
		got = append(got, line)
	}
	want := []string{"denied-3  flow control", "denied-2 web mutate plug-in Priority denied no such class",
		"denied-1  validate webhook check.example.com denied no team"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.now = s.now.Add(time.Hour)
	if v := s.view("?rejected=true&since=10m"); len(v.Traces) != 0 {
		t.Errorf("an hour later there are still %d", len(v.Traces))
	}
	if v := s.view("?rejected=true&limit=1"); len(v.Traces) != 1 || !v.More {
		t.Errorf("with a limit of one: %d, more %t", len(v.Traces), v.More)
	}
	if v := s.view("?rejected=true&namespace=other"); len(v.Traces) != 0 {
		t.Errorf("another namespace has %d", len(v.Traces))
	}
}

func TestBadQuestions(t *testing.T) {
	s := newServer(t, 1<<20)
	for query, want := range map[string]int{
		"/nosuch": 404, "?rejected=x": 400, "?since=x": 400, "?since=-1m": 400, "?limit=0": 400, "?limit=100000": 400,
		"?field=a": 400, "?field=a..b&resource=pods&name=x": 400, "?resource=pods&name=x&field=spec": 404,
	} {
		if code, body := s.ask(query); code != want {
			t.Errorf("%s: answered %d, want %d: %s", query, code, want, body)
		}
	}
	off := &server{t: t}
	if code, _ := off.ask(""); code != http.StatusNotFound {
		t.Errorf("a server that keeps nothing answers %d", code)
	}
}

// secrets are hidden in all parts of the trace of a Secret's write: the stored object, the webhook's input and output,
// the reason of the rejection.
func TestSecretsAreNotKept(t *testing.T) {
	const password, other = "hunter2-hunter2", "correct-horse"
	s := newServer(t, 1<<20)
	secrets := kind("secrets", func() resource.Object { return &corev1.Secret{} })
	make := func(v string) *corev1.Secret {
		return &corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "s", Labels: map[string]string{"a": "b"},
				Annotations: map[string]string{lastApplied: `{"stringData":{"p":"` + v + `"}}`}},
			Data: map[string][]byte{"p": []byte(v)},
		}
	}
	w := s.begin("update", "secrets", "", "s")
	w.Body("application/json", encoded(t, make(password)))
	w.Given(secrets, "", make(password))
	hooked := make(other)
	hooked.StringData = map[string]string{"q": password}
	w.Patched(encoded(t, make(password)), encoded(t, hooked), encoded(t, hooked))
	w.Step(Step{Phase: trace.Mutate, Kind: trace.Webhook, Name: "hook", Result: trace.Changed, Reason: "saw " + password})
	w.Mutated("third-party", 0, hooked, nil)
	w.Committed(secrets, make(password), make(other), encoded(t, make(password)), encoded(t, make(other)), 3)
	s.finish(w, "secret-1", http.StatusOK)
	no := s.begin("create", "secrets", "", "")
	no.Enter(Validate)
	no.Step(Step{Phase: trace.Validate, Kind: trace.Policy, Name: "pol", Result: trace.Denied, Reason: "bad " + password})
	no.Refused(&metav1.Status{Reason: metav1.StatusReasonInvalid, Message: "bad " + password})
	s.finish(no, "secret-2", http.StatusUnprocessableEntity)
	token := s.begin("create", "serviceaccounts", "token", "sa")
	token.Body("application/json", []byte(password))
	token.Patched([]byte(`{"status":{"token":"`+password+`"}}`), []byte(`{"status":{"token":"`+password+`"}}`), nil)
	token.Step(Step{Phase: trace.Mutate, Kind: trace.Webhook, Name: "hook", Result: trace.Changed})
	s.finish(token, "secret-3", http.StatusCreated)

	var kept [][]byte
	for _, r := range []*ring{&s.full, &s.refused, &s.brief} {
		kept = append(kept, r.kept()...)
	}
	_, all := s.ask("?limit=100&brief=true")
	_, field := s.ask("?resource=secrets&namespace=shop&name=s&field=data.p")
	for _, where := range append(kept, all, field) {
		for _, v := range []string{password, other} {
			for _, hidden := range []string{v, string(bytes.Trim(encoded(t, []byte(v)), `"=`))} {
				if bytes.Contains(where, []byte(hidden)) {
					t.Errorf("%s is in %s", hidden, where)
				}
			}
		}
	}
	v := s.view("/secret-1")
	hook := v.Traces[0].Steps[slices.IndexFunc(v.Traces[0].Steps, func(st trace.Step) bool { return st.Name == "hook" })]
	var fields []string
	for _, c := range hook.Changes {
		fields = append(fields, c.Field)
	}
	if diff := cmp.Diff([]string{"data.p", "data.q", `metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]`},
		fields); diff != "" {
		t.Errorf("the paths that changed (-want +got):\n%s", diff)
	}
	if o := v.Traces[0].Objects[0]; len(o.Changes) != 2 || o.Changes[0].Value == o.Changes[0].Was {
		t.Errorf("what was stored: %+v", o)
	}
}

// A flood of writes uses no more memory than allowed, and does not displace rejected writes.
func TestMemoryIsBounded(t *testing.T) {
	const bound = 1 << 20
	s := newServer(t, bound)
	no := s.begin("create", "pods", "", "")
	no.Refused(&metav1.Status{Message: "no"})
	s.finish(no, "refused", http.StatusForbidden)
	lease := s.begin("update", "leases", "", "l")
	lease.brief = true
	s.finish(lease, "lease", http.StatusOK)
	large := strings.Repeat("x", 3000)
	for i := range 3000 {
		w := s.begin("create", "pods", "", "")
		w.Body("application/json", []byte(`{"a":"`+large+`"}`))
		p := pod(large)
		p.Name = fmt.Sprint("p", i)
		w.Committed(pods(), nil, p, nil, encoded(t, p), int64(i))
		s.finish(w, fmt.Sprint("w", i), http.StatusCreated)
		if k := s.Recorder.kept(); k.Bytes > bound {
			t.Fatalf("after %d writes %d bytes are taken", i, k.Bytes)
		}
	}
	for id, want := range map[string]int{"refused": 200, "lease": 200, "w2999": 200, "w0": 404} {
		if code, body := s.ask("/" + id); code != want {
			t.Errorf("%s: %d, want %d: %.200s", id, code, want, body)
		}
	}
	huge := s.begin("create", "pods", "", "")
	p := pod(strings.Repeat("x", bound))
	huge.Committed(pods(), nil, p, nil, encoded(t, p), 1)
	huge.Step(Step{Phase: trace.Mutate, Kind: trace.Webhook, Name: "h", Result: trace.Changed, Before: encoded(t, p), After: encoded(t, p)})
	s.finish(huge, "huge", http.StatusCreated)
	v := s.view("/huge")
	if got := v.Traces[0]; len(got.Objects) != 1 || got.Steps[0].Untold == "" {
		t.Errorf("of a huge object is told %+v", got)
	}
	if v.Kept.Bytes > bound || v.Kept.Oldest == "" || v.Kept.OldestRejected == "" {
		t.Errorf("kept: %+v", v.Kept)
	}
}

func TestBriefWritesHaveNoContents(t *testing.T) {
	s := newServer(t, 1<<20)
	for i, c := range []struct {
		plural, subresource, user string
		brief                     bool
	}{
		{"pods", "", "system:kube-scheduler", false}, {"pods", "status", "system:node:a", true}, {"pods", "status", "jane", false},
		{"events", "", "jane", true}, {"pods", "status", "system:serviceaccount:shop:operator", false},
		{"pods", "status", "system:serviceaccount:kube-system:job", true},
	} {
		w := s.begin("update", c.plural, c.subresource, "web")
		w.Asks(c.user)
		w.Committed(pods(), pod("a"), pod("b"), encoded(t, pod("a")), encoded(t, pod("b")), 4)
		id := fmt.Sprint("brief-", i)
		s.finish(w, id, http.StatusOK)
		got := s.view("/" + id).Traces[0]
		if got.Brief != c.brief || (len(got.Objects[0].Changes) == 0) != c.brief {
			t.Errorf("%+v: brief %t, changes %+v", c, got.Brief, got.Objects[0].Changes)
		}
	}
}

// TestSegmentsThatWereRead checks that segments that readers use are not overwritten.
func TestSegmentsThatWereRead(t *testing.T) {
	r := ring{bound: 64, segment: 16}
	add := func(from byte, n int) {
		for i := range n {
			if !r.add(bytes.Repeat([]byte{from + byte(i)}, 8)) {
				t.Fatal("a record was refused")
			}
		}
	}
	add('a', 4)
	read := r.kept()
	was := bytes.Join(read, nil)
	add('e', 20)
	if diff := cmp.Diff(string(was), string(bytes.Join(read, nil))); diff != "" {
		t.Errorf("what is read has changed:\n%s", diff)
	}
	var last []byte
	r.each(func(b []byte) bool { last = append(last, b[0]); return true })
	if diff := cmp.Diff("uvwx", string(last)); diff != "" {
		t.Errorf("kept:\n%s", diff)
	}
}
