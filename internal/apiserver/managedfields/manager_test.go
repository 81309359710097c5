// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

func pods() *resource.Descriptor {
	return &resource.Descriptor{
		Resource: "pods", Kind: "Pod", Storage: "v1", Namespaced: true,
		Versions:     []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.Pod{} }}},
		Subresources: []resource.Subresource{{Name: "status"}},
	}
}

// events has a hub of another group.
func events() *resource.Descriptor {
	return &resource.Descriptor{
		Group: "events.k8s.io", Resource: "events", Kind: "Event", Storage: "core", Namespaced: true,
		Codec: resource.ProtobufCodec(corev1.SchemeGroupVersion.WithKind("Event"), func() resource.Object { return &corev1.Event{} }),
		Versions: []resource.Version{{Name: "core", Unserved: true, New: func() resource.Object { return &corev1.Event{} }}, {
			Name: "v1", New: func() resource.Object { return &eventsv1.Event{} },
			ToHub: func(o resource.Object) (resource.Object, error) {
				e := o.(*eventsv1.Event)
				return &corev1.Event{TypeMeta: e.TypeMeta, ObjectMeta: e.ObjectMeta, Message: e.Note}, nil
			},
			FromHub: func(o resource.Object) (resource.Object, error) {
				e := o.(*corev1.Event)
				return &eventsv1.Event{TypeMeta: e.TypeMeta, ObjectMeta: e.ObjectMeta, Note: e.Message}, nil
			},
		}},
	}
}

const crontab = `
metadata: {name: crontabs.stable.example.com}
spec:
  group: stable.example.com
  scope: Namespaced
  names: {plural: crontabs, singular: crontab, kind: CronTab, listKind: CronTabList}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              cronSpec: {type: string}
              replicas: {type: integer}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [key]
                items: {type: object, required: [key], properties: {key: {type: string}, val: {type: string}}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
`

func crontabs(t testing.TB) *resource.Descriptor {
	t.Helper()
	def := &v1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(crontab), def); err != nil {
		t.Fatal(err)
	}
	d, err := crd.Compile(def, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func cr(t testing.TB, data string) *unstructured.Unstructured {
	t.Helper()
	j, err := yaml.YAMLToJSON([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(j, &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

// owners returns the entries as text.
func owners(obj resource.Object) []string {
	var out []string
	for _, e := range obj.GetManagedFields() {
		s := fmt.Sprintf("%s %s %s", e.Manager, e.Operation, e.APIVersion)
		if e.Subresource != "" {
			s += " " + e.Subresource
		}
		out = append(out, s+" "+string(e.FieldsV1.Raw))
	}
	return out
}

func equal(t *testing.T, obj resource.Object, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, owners(obj)); d != "" {
		t.Error(d)
	}
}

func pod(uid string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", Labels: map[string]string{"a": "b"}}}
	p.UID = "u"
	if uid == "" {
		p.UID = ""
	}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	return p
}

func TestCreateAndUpdate(t *testing.T) {
	m, d := New(nil), pods()
	p := pod("u")
	p.Status.Phase = corev1.PodPending
	got, err := m.Update(d, "v1", "", nil, p, "kubectl-create")
	if err != nil {
		t.Fatal(err)
	}
	const spec = `"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}},"f:restartPolicy":{}}`
	created := `kubectl-create Update v1 {"f:metadata":{"f:labels":{".":{},"f:a":{}}},` + spec + `}`
	equal(t, got, created)
	if p.APIVersion != "" || p.Kind != "" {
		t.Errorf("the object's type meta was set: %v", p.TypeMeta)
	}
	live := p.DeepCopy()

	same := live.DeepCopy()
	if got, err = m.Update(d, "v1", "", live, same, "other"); err != nil {
		t.Fatal(err)
	}
	equal(t, got, created)

	status := live.DeepCopy()
	status.Status.Phase = corev1.PodRunning
	if got, err = m.Update(d, "v1", "status", live, status, "kubelet"); err != nil {
		t.Fatal(err)
	}
	equal(t, got, created, `kubelet Update v1 status {"f:status":{"f:phase":{}}}`)

	// A client that does not know managedFields does not lose them.
	bare := live.DeepCopy()
	bare.ManagedFields = nil
	bare.Labels["a"] = "c"
	if got, err = m.Update(d, "v1", "", live, bare, "editor"); err != nil {
		t.Fatal(err)
	}
	equal(t, got,
		`editor Update v1 {"f:metadata":{"f:labels":{"f:a":{}}}}`,
		`kubectl-create Update v1 {"f:metadata":{"f:labels":{}},`+spec+`}`)
}

func TestManagersAreCapped(t *testing.T) {
	m, d := New(nil), pods()
	var live resource.Object = pod("u")
	if _, err := m.Update(d, "v1", "", nil, live, "first"); err != nil {
		t.Fatal(err)
	}
	for i := range 15 {
		next := live.DeepCopyObject().(*corev1.Pod)
		next.Labels[fmt.Sprintf("l%d", i)] = "x"
		if _, err := m.Update(d, "v1", "", live, next, fmt.Sprintf("manager-%d", i)); err != nil {
			t.Fatal(err)
		}
		live = next
	}
	entries := live.GetManagedFields()
	if len(entries) != 10 || entries[0].Manager != "ancient-changes" {
		t.Errorf("%d entries, the first of %s", len(entries), entries[0].Manager)
	}
}

func TestApplyConflict(t *testing.T) {
	m, d := New(nil), pods()
	config := func(image string) *unstructured.Unstructured {
		return cr(t, `{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ns}, spec: {containers: [{name: c, image: `+image+`}]}}`)
	}
	live, err := m.Apply(d, "v1", "", nil, Configuration{config("one"), "m1", false})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := live.(*corev1.Pod); !ok {
		t.Fatalf("got a %T", live)
	}
	live.SetUID("u")
	const fields = `{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{}}}}}`
	equal(t, live, "m1 Apply v1 "+fields)
	_, err = m.Apply(d, "v1", "", live, Configuration{config("two"), "m2", false})
	var status *apierrors.StatusError
	if !apierrors.IsConflict(err) {
		t.Fatalf("got %v", err)
	}
	status = err.(*apierrors.StatusError)
	want := []metav1.StatusCause{{Type: metav1.CauseTypeFieldManagerConflict, Message: `conflict with "m1"`,
		Field: `.spec.containers[name="c"].image`}}
	if diff := cmp.Diff(want, status.ErrStatus.Details.Causes); diff != "" {
		t.Error(diff)
	}
	forced, err := m.Apply(d, "v1", "", live, Configuration{config("two"), "m2", true})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, forced,
		`m1 Apply v1 {"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{}}}}}`,
		"m2 Apply v1 "+fields)
	if got := forced.(*corev1.Pod).Spec.Containers[0].Image; got != "two" {
		t.Errorf("image %s", got)
	}
	again, err := m.Apply(d, "v1", "", forced, Configuration{config("two"), "m2", false})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(forced, again); diff != "" {
		t.Errorf("applying the same again is a change: %s", diff)
	}
}

func TestApplyRefusesUnknownFields(t *testing.T) {
	m := New(nil)
	_, err := m.Apply(pods(), "v1", "", pod("u"), Configuration{cr(t, `{apiVersion: v1, kind: Pod, metadata: {name: a}, zzz: 1}`), "x", false})
	if want := "failed to create typed patch object (/a; /v1, Kind=Pod): .zzz: field not declared in schema"; err == nil ||
		err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCustomKind(t *testing.T) {
	m, d := New(slog.New(slog.NewTextHandler(t.Output(), nil))), crontabs(t)
	const gv = "stable.example.com/v1"
	live := cr(t, `{apiVersion: stable.example.com/v1, kind: CronTab, metadata: {name: a}, spec: {replicas: 1, parts: [{key: a, val: xx}]}, status: {replicas: 1}}`)
	if _, err := m.Update(d, "v1", "", nil, live, "author"); err != nil {
		t.Fatal(err)
	}
	live.SetUID("u")
	author := "author Update " + gv + ` {"f:spec":{".":{},"f:parts":{".":{},"k:{\"key\":\"a\"}":{".":{},"f:key":{},"f:val":{}}},"f:replicas":{}}}`
	equal(t, live, author)

	applied, err := m.Apply(d, "v1", "", live, Configuration{cr(t,
		`{apiVersion: stable.example.com/v1, kind: CronTab, metadata: {name: a}, spec: {parts: [{key: b, val: yy}]}}`), "m1", false})
	if err != nil {
		t.Fatal(err)
	}
	equal(t, applied, "m1 Apply "+gv+` {"f:spec":{"f:parts":{"k:{\"key\":\"b\"}":{".":{},"f:key":{},"f:val":{}}}}}`, author)
	parts, _, err := unstructured.NestedSlice(applied.(*unstructured.Unstructured).Object, "spec", "parts")
	if err != nil || len(parts) != 2 {
		t.Errorf("parts %v, %v", parts, err)
	}
	// Fields that an applier no longer sets are removed.
	dropped, err := m.Apply(d, "v1", "", applied, Configuration{cr(t,
		`{apiVersion: stable.example.com/v1, kind: CronTab, metadata: {name: a}, spec: {}}`), "m1", false})
	if err != nil {
		t.Fatal(err)
	}
	if parts, _, err = unstructured.NestedSlice(dropped.(*unstructured.Unstructured).Object, "spec", "parts"); err != nil || len(parts) != 1 {
		t.Errorf("parts %v, %v", parts, err)
	}

	entries, err := m.ScaleEntries(d, "v1", live)
	if err != nil {
		t.Fatal(err)
	}
	before := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "a", ManagedFields: entries},
		Spec: autoscalingv1.ScaleSpec{Replicas: 1}}
	after := before.DeepCopy()
	after.Spec.Replicas = 5
	scaled, err := m.UpdateScale(before, after, "hpa")
	if err != nil {
		t.Fatal(err)
	}
	parent := func(scale resource.Object) resource.Object {
		got := live.DeepCopy()
		entries, err := m.ParentEntries(d, "v1", live, scale.GetManagedFields())
		if err != nil {
			t.Fatal(err)
		}
		got.SetManagedFields(entries)
		return got
	}
	rest := "author Update " + gv + ` {"f:spec":{".":{},"f:parts":{".":{},"k:{\"key\":\"a\"}":{".":{},"f:key":{},"f:val":{}}}}}`
	got := parent(scaled)
	equal(t, got, "hpa Update "+gv+` scale {"f:spec":{"f:replicas":{}}}`, rest)
	if got.GetManagedFields()[0].Time != nil {
		t.Error("scale's first entry has a time")
	}
	// an apply of a field that another manager owns must be forced
	scale := cr(t, `{apiVersion: autoscaling/v1, kind: Scale, metadata: {name: a}, spec: {replicas: 7}}`)
	if _, err := m.ApplyScale(before, scale, "hpa", false); !apierrors.IsConflict(err) {
		t.Errorf("not a conflict: %v", err)
	}
	forced, err := m.ApplyScale(before, scale, "hpa", true)
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := forced.(*autoscalingv1.Scale); !ok || s.Spec.Replicas != 7 {
		t.Errorf("applied a scale of %+v", forced)
	}
	equal(t, parent(forced), "hpa Apply "+gv+` scale {"f:spec":{"f:replicas":{}}}`, rest)
}

func TestHubOfAnotherGroup(t *testing.T) {
	m, d := New(nil), events()
	e := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "n"}, Message: "hello"}
	got, err := m.Update(d, "v1", "", nil, e, "x")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, `x Update events.k8s.io/v1 {"f:note":{}}`)
	e.UID = "u"
	applied, err := m.Apply(d, "v1", "", e, Configuration{cr(t,
		`{apiVersion: events.k8s.io/v1, kind: Event, metadata: {name: e, namespace: ns}, note: bye}`), "y", true})
	if err != nil {
		t.Fatal(err)
	}
	if got, ok := applied.(*corev1.Event); !ok || got.Message != "bye" {
		t.Errorf("got %T, %v", applied, applied)
	}
}

// TestConversionThatFillsIn has a conversion that fills in a field: the creator of the object owns it.
func TestConversionThatFillsIn(t *testing.T) {
	m, d := New(nil), events()
	plain := d.Versions[1].ToHub
	d.Versions[1].ToHub = func(o resource.Object) (resource.Object, error) {
		hub, err := plain(o)
		if e, ok := hub.(*corev1.Event); ok && e.Message == "" {
			e.Message = "filled in"
		}
		return hub, err
	}
	hub, err := d.Versions[1].ToHub(&eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "n"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := m.Update(d, "v1", "", nil, hub, "x")
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, `x Update events.k8s.io/v1 {"f:note":{}}`)
}

// FuzzApplyTwice checks that applying the same configuration again changes nothing.
func FuzzApplyTwice(f *testing.F) {
	m, d := New(nil), crontabs(f)
	f.Add([]byte(`{"spec":{"cronSpec":"x","parts":[{"key":"a"},{"key":"b","val":"c"}]},"metadata":{"labels":{"a":"b"}}}`))
	f.Add([]byte(`{"spec":{"parts":[],"replicas":null},"status":{"x":[1,{"y":null}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var content map[string]any
		if err := utiljson.Unmarshal(data, &content); err != nil || content == nil {
			return
		}
		config := func() *unstructured.Unstructured {
			u := (&unstructured.Unstructured{Object: content}).DeepCopy()
			if _, ok := u.Object["metadata"].(map[string]any); !ok {
				u.Object["metadata"] = map[string]any{}
			}
			u.Object["apiVersion"], u.Object["kind"] = "stable.example.com/v1", "CronTab"
			return u
		}
		if d.Versions[0].Coerce(config()) != nil {
			return
		}
		once, err := m.Apply(d, "v1", "", nil, Configuration{config(), "m", false})
		if err != nil {
			return
		}
		once.SetUID("u")
		twice, err := m.Apply(d, "v1", "", once, Configuration{config(), "m", false})
		if err != nil {
			t.Fatal(err)
		}
		a, b := once.DeepCopyObject().(*unstructured.Unstructured), twice.DeepCopyObject().(*unstructured.Unstructured)
		a.SetUID("")
		b.SetUID("")
		a.SetManagedFields(nil)
		b.SetManagedFields(nil)
		x, err := json.Marshal(a.Object)
		if err != nil {
			t.Fatal(err)
		}
		y, err := json.Marshal(b.Object)
		if err != nil {
			t.Fatal(err)
		}
		if string(x) != string(y) {
			t.Errorf("first %s\nthen %s", x, y)
		}
	})
}

func BenchmarkCreatePod(b *testing.B) {
	m, d := New(nil), pods()
	if err := m.Warm(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := m.Update(d, "v1", "", nil, pod("u"), "x"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdatePod(b *testing.B) {
	m, d := New(nil), pods()
	live := pod("u")
	if _, err := m.Update(d, "v1", "", nil, live, "x"); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		next := live.DeepCopy()
		next.Labels["a"] = "z"
		if _, err := m.Update(d, "v1", "", live, next, "x"); err != nil {
			b.Fatal(err)
		}
	}
}

// The entries of a token request contain the fields that the client set, and none of the response.
func TestAnswered(t *testing.T) {
	seconds := int64(600)
	empty := func() resource.Object { return &authenticationv1.TokenRequest{} }
	asked := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"a"}, ExpirationSeconds: &seconds}}
	got := New(nil).Answered(authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"), "token", asked, empty, "m")
	equal(t, got, `m Update authentication.k8s.io/v1 token {"f:spec":{"f:audiences":{},"f:expirationSeconds":{}}}`)
}
