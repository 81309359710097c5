// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// patchingBy returns a setting with one mutating webhook that patches objects.
func patchingBy(t *testing.T, patch string) (*setting, *hookServer) {
	t.Helper()
	server := newHookServer(t)
	server.say = patchOf(patch)
	s := newSetting(t, Protection{})
	h := webhookOf(server, "w")
	h.Rules[0].Resources = []string{"*"}
	s.register(t, true, h)
	return s, server
}

// TestPatchesThatMakeNoObject checks that the result of a patch is decoded as the API decodes objects. An invalid
// result rejects the request as an internal error.
func TestPatchesThatMakeNoObject(t *testing.T) {
	const note = "\nmutation.webhook.admission.k8s.io/round_0_index_0 = {\"configuration\":\"c\",\"webhook\":\"w.example.com\",\"mutated\":false}"
	for patch, want := range map[string]string{
		`{"op":"replace","path":"/kind","value":7}`:            "couldn't get version/kind; json parse error: json: cannot unmarshal number into",
		`{"op":"replace","path":"/spec/containers","value":7}`: "json: cannot unmarshal number into Go struct field PodSpec.spec.containers of type []v1.Container",
		`{"op":"replace","path":"/kind","value":"ConfigMap"},{"op":"add","path":"/data","value":7}`: "json: cannot unmarshal number into Go struct field " +
			"ConfigMap.data of type map[string]string",
		`{"op":"replace","path":"/kind","value":"ConfigMap"}`:                                                   "converting (v1.ConfigMap) to (Pod): unknown conversion",
		`{"op":"replace","path":"/kind","value":"Widget"},{"op":"replace","path":"/apiVersion","value":"a/v1"}`: `no kind "Widget" is registered for version "a/v1" in`,
		`{"op":"replace","path":"/apiVersion","value":"v2"}`:                                                    `no kind "Pod" is registered for version "v2" in scheme`,
		`{"op":"replace","path":"/apiVersion","value":"apps/v1"}`:                                               `no kind "Pod" is registered for version "apps/v1" in scheme`,
	} {
		s, server := patchingBy(t, "["+patch+"]")
		got := s.outcome(t, server, creation())
		if !strings.HasPrefix(got, "500 InternalError: Internal error occurred: "+want) || !strings.HasSuffix(got, note) {
			t.Errorf("%s: %s", patch, got)
		}
		counts := "rejection_count{error_type=apiserver_internal_error,name=w.example.com,operation=CREATE,rejection_code=0,type=admit} 1\n" +
			"request_total{code=0,name=w.example.com,operation=CREATE,rejected=true,type=admit} 1"
		if d := cmp.Diff(counts, s.counted(t)); d != "" {
			t.Errorf("%s: counts (-want +got):\n%s", patch, d)
		}
	}
}

// TestCustomObjects checks that custom objects are patched without a Go type.
func TestCustomObjects(t *testing.T) {
	for patch, want := range map[string]string{
		`[{"op":"add","path":"/size","value":7}]`: "allowed map[apiVersion:example.com/v1 kind:Widget metadata:map[name:p] size:7]",
		`[{"op":"remove","path":"/kind"}]`:        "500 InternalError: Internal error occurred: Object 'Kind' is missing in",
	} {
		s, server := patchingBy(t, patch)
		a := creation()
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
			"metadata": map[string]any{"name": "p"}}}
		a.Descriptor, a.Object = s.kinds[4], u
		got, _, _ := strings.Cut(s.outcome(t, server, a), "\n")
		if got == "allowed" {
			got += fmt.Sprint(" ", a.Object.(*unstructured.Unstructured).Object)
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", patch, got, want)
		}
	}
}

// TestObjectsThatCannotBeEncoded checks that no webhook is called for them.
func TestObjectsThatCannotBeEncoded(t *testing.T) {
	widget := func(more any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "more": more}}
	}
	good, bad := widget(nil), widget(func() {})
	for name, a := range map[string]*admit.Attributes{
		"the object": {Object: bad, Old: good}, "the old object": {Object: good, Old: bad},
		"the options": {Object: good, Old: good, Options: bad},
	} {
		s, server := patchingBy(t, "[]")
		a.Operation, a.Version, a.Descriptor = admit.Update, "v1", s.kinds[4]
		got := s.outcome(t, server, a)
		if !strings.HasPrefix(got, "500 ") || !strings.Contains(got, `"w.example.com": could not create admission objects: encode Widget: `) {
			t.Errorf("%s: %s", name, got)
		}
		if n := len(server.paths()); n > 0 {
			t.Errorf("%s: asked %d times", name, n)
		}
	}
}

// TestDeletionsAreNotPatched checks that a webhook may admit a delete, and that a patch of it fails.
func TestDeletionsAreNotPatched(t *testing.T) {
	for patch, want := range map[string]string{
		`[]`: "allowed",
		`[{"op":"add","path":"/a","value":"b"}]`: `500 InternalError: Internal error occurred: admission webhook "w.example.com" ` +
			"attempted to modify the object, which is not supported for this operation",
	} {
		s, server := patchingBy(t, patch)
		a := creation()
		a.Operation, a.Old, a.Object = admit.Delete, a.Object, nil
		want += "\nmutation.webhook.admission.k8s.io/round_0_index_0 = {\"configuration\":\"c\",\"webhook\":\"w.example.com\",\"mutated\":false}"
		if got := s.outcome(t, server, a); got != want {
			t.Errorf("%s: %s, want %s", patch, got, want)
		}
	}
}

// audited returns the context of a request with an audit level; empty: not audited.
func audited(t *testing.T, level auditinternal.Level) context.Context {
	t.Helper()
	if level == "" {
		return t.Context()
	}
	ctx := audit.WithAuditContext(t.Context())
	if err := audit.AuditContextFrom(ctx).Init(audit.RequestAuditConfig{Level: level}, nil); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// TestPatchesAreAudited checks that patches are audited at the level of whole requests.
func TestPatchesAreAudited(t *testing.T) {
	const patch = `[{"op":"add","path":"/metadata/labels/a","value":"b"}]`
	for level, want := range map[auditinternal.Level]string{
		"": "", auditinternal.LevelMetadata: "",
		auditinternal.LevelRequest:         `{"configuration":"c","webhook":"w.example.com","patch":` + patch + `,"patchType":"JSONPatch"}`,
		auditinternal.LevelRequestResponse: `{"configuration":"c","webhook":"w.example.com","patch":` + patch + `,"patchType":"JSONPatch"}`,
	} {
		s, server := patchingBy(t, patch)
		ctx := audited(t, level)
		if got := s.outcomeIn(ctx, server, creation()); !strings.HasPrefix(got, "allowed") {
			t.Error(got)
		}
		got := ""
		if level != "" {
			got, _ = audit.AuditContextFrom(ctx).GetEventAnnotation("patch.webhook.admission.k8s.io/round_0_index_0")
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("at level %q (-want +got):\n%s", level, d)
		}
	}
}

// TestSecondRound checks which webhooks are called again when another plug-in requests a second round: those that
// request it, if the object has changed since their call.
func TestSecondRound(t *testing.T) {
	label := func(obj resource.Object) { obj.GetLabels()["x"] = "y" }
	for _, c := range []struct {
		name    string
		policy  admissionregistrationv1.ReinvocationPolicyType
		between func(resource.Object)
		want    string
	}{
		{"changed", admissionregistrationv1.IfNeededReinvocationPolicy, label, "w w"},
		{"as it was", admissionregistrationv1.IfNeededReinvocationPolicy, func(resource.Object) {}, "w"},
		{"changed, but it does not want it", admissionregistrationv1.NeverReinvocationPolicy, label, "w"},
	} {
		server := newHookServer(t)
		server.say = answerOf(`"allowed":true`)
		s := newSetting(t, Protection{})
		h := webhookOf(server, "w")
		h.ReinvocationPolicy = &c.policy
		s.register(t, true, h)
		a := creation()
		a.Descriptor = s.kinds[0]
		for range 2 {
			if err := s.mutating.Mutate(t.Context(), s.objects, a); err != nil {
				t.Fatal(err)
			}
			c.between(a.Object)
			a.CallAgain()
			a.Again()
		}
		if got := strings.Join(server.paths(), " "); got != c.want {
			t.Errorf("%s: called %s", c.name, got)
		}
	}
}

// TestFirstCallInSecondRound checks that a webhook that did not match in the first round is not called in the second,
// and that a webhook skipped there is marked with the round.
func TestFirstCallInSecondRound(t *testing.T) {
	server := newHookServer(t)
	server.other = map[string]string{"patch": patchOf(`[{"op":"add","path":"/metadata/labels/late","value":"b"}]`)}
	server.say = "nonsense"
	s := newSetting(t, Protection{})
	late, again, patch := webhookOf(server, "late"), webhookOf(server, "again"), webhookOf(server, "patch")
	late.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"late": "b"}}
	for _, h := range []*admissionregistrationv1.MutatingWebhook{&late, &again} {
		h.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		h.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	}
	s.register(t, true, late, again, patch)
	got := s.outcome(t, server, creation())
	if asked := strings.Join(server.paths(), " "); asked != "again patch again" {
		t.Errorf("asked %s", asked)
	}
	for _, want := range []string{"0_index_1", "1_index_1"} {
		if want = "failed-open.mutation.webhook.admission.k8s.io/round_" + want + " = again.example.com"; !strings.Contains(got, want) {
			t.Errorf("want %s in\n%s", want, got)
		}
	}
}

// TestEquivalents checks that a webhook whose rules name another version of the same objects sees them in that version,
// if its match policy is Equivalent, and that its result is stored in the request's version.
func TestEquivalents(t *testing.T) {
	const patch = `[{"op":"add","path":"/metadata/labels/a","value":"b"}]`
	for _, c := range []struct {
		name   string
		policy *admissionregistrationv1.MatchPolicyType
		change func(*corev1.Pod)
		patch  string
		want   string // empty: it is not called
	}{
		{"no policy", nil, nil, patch, ""},
		{"exact", ptr.To(admissionregistrationv1.Exact), nil, patch, ""},
		{"equivalent", ptr.To(admissionregistrationv1.Equivalent), nil, patch, "allowed\nlabels map[a:b team:a]"},
		{"what has no such form", ptr.To(admissionregistrationv1.Equivalent), func(p *corev1.Pod) { p.Name = "no-beta" }, patch,
			"500 InternalError: Internal error occurred: no such form"},
		{"what cannot be brought back", ptr.To(admissionregistrationv1.Equivalent), nil,
			`[{"op":"replace","path":"/metadata/name","value":"no-hub"}]`, "no such form"},
	} {
		for _, mutating := range []bool{true, false} {
			server := newHookServer(t)
			server.say = answerOf(`"allowed":true`)
			if mutating {
				server.say = patchOf(c.patch)
			}
			s := newSetting(t, Protection{})
			h := webhookOf(server, "w")
			h.MatchPolicy, h.Rules[0].APIVersions = c.policy, []string{"v1beta1"}
			s.register(t, mutating, h)
			a := creation()
			if c.change != nil {
				c.change(a.Object.(*corev1.Pod))
			}
			got, _, _ := strings.Cut(s.outcome(t, server, a), "\nmutation.webhook")
			want := c.want
			if want == "" || !mutating && !strings.HasPrefix(want, "500") {
				want = "allowed"
			}
			if got != want {
				t.Errorf("%s, mutating %v: %s, want %s", c.name, mutating, got, want)
			}
			if c.want == "" || strings.HasPrefix(c.want, "500") {
				if n := len(server.paths()); n > 0 {
					t.Errorf("%s, mutating %v: asked %d times", c.name, mutating, n)
				}
				continue
			}
			q := server.newest(t).Request
			if q.Kind.Version != "v1beta1" || q.RequestKind.Version != "v1" || q.Resource.Version != "v1beta1" ||
				q.RequestResource.Version != "v1" ||
				!strings.Contains(string(q.Object.Raw), `"apiVersion":"v1beta1"`) {
				t.Errorf("%s, mutating %v: asked about %v of %v: %s", c.name, mutating, q.Kind, q.RequestKind, q.Object.Raw)
			}
			if form := a.Object.GetAnnotations()["form"]; mutating && c.want[0] == 'a' && form != "v1" {
				t.Errorf("%s: stored in the form %q", c.name, form)
			}
		}
	}
}

// TestSelectors checks that webhooks are called for what their selectors match. A missing namespace rejects the
// request.
func TestSelectors(t *testing.T) {
	stored := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"env": "prod"}}}
	label := func(key, value string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
	}
	for name, c := range map[string]struct {
		namespaces, objects *metav1.LabelSelector
		namespace           *corev1.Namespace
		want                string
		asked               bool
	}{
		"the namespace":         {label("env", "prod"), &metav1.LabelSelector{}, stored, "allowed", true},
		"another namespace":     {label("env", "test"), &metav1.LabelSelector{}, stored, "allowed", false},
		"the object":            {&metav1.LabelSelector{}, label("team", "a"), nil, "allowed", true},
		"another object":        {&metav1.LabelSelector{}, label("team", "b"), nil, "allowed", false},
		"a namespace not there": {label("env", "prod"), &metav1.LabelSelector{}, nil, `404 NotFound: namespaces "ns" not found`, false},
	} {
		for _, mutating := range []bool{true, false} {
			server := newHookServer(t)
			server.say = answerOf(`"allowed":true`)
			s := newSetting(t, Protection{})
			if c.namespace != nil {
				s.objects.objects["namespaces//ns"] = c.namespace
			}
			h := webhookOf(server, "w")
			h.NamespaceSelector, h.ObjectSelector = c.namespaces, c.objects
			h.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "x", Expression: "true"}}
			s.register(t, mutating, h)
			got, _, _ := strings.Cut(s.outcome(t, server, creation()), "\n")
			if got != c.want || (len(server.paths()) > 0) != c.asked {
				t.Errorf("%s, mutating %v: %s, asked %v", name, mutating, got, server.paths())
			}
		}
	}
}

// TestConditionsOfForms checks that match conditions see the object in the form that the webhook would receive. A
// failed conversion rejects the request.
func TestConditionsOfForms(t *testing.T) {
	for name, want := range map[string]string{"p": "allowed", "no-beta": "500 InternalError: Internal error occurred: no such form"} {
		for _, mutating := range []bool{true, false} {
			server := newHookServer(t)
			server.say = answerOf(`"allowed":true`)
			s := newSetting(t, Protection{})
			h := webhookOf(server, "w")
			h.MatchPolicy, h.Rules[0].APIVersions = ptr.To(admissionregistrationv1.Equivalent), []string{"v1beta1"}
			h.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "x", Expression: "object.metadata.annotations.form == 'v1beta1'"}}
			s.register(t, mutating, h)
			a := creation()
			a.Object.SetName(name)
			got, _, _ := strings.Cut(s.outcome(t, server, a), "\n")
			if got != want || (len(server.paths()) > 0) != (want == "allowed") {
				t.Errorf("%s, mutating %v: %s, asked %v", name, mutating, got, server.paths())
			}
		}
	}
}

// TestExclusionsAreCounted checks that a webhook whose conditions do not match is counted under upstream's names.
func TestExclusionsAreCounted(t *testing.T) {
	for mutating, kind := range map[bool]string{true: "admit", false: "validate"} {
		server := newHookServer(t)
		s := newSetting(t, Protection{})
		h := webhookOf(server, "excluded-"+kind)
		h.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "x", Expression: "false"}}
		s.register(t, mutating, h)
		before := exclusions(t, h.Name, kind)
		if got := s.outcome(t, server, creation()); got != "allowed" {
			t.Error(got)
		}
		if n := exclusions(t, h.Name, kind) - before; n != 1 {
			t.Errorf("%s: counted %v", kind, n)
		}
	}
}

// exclusions returns how often the libraries excluded one webhook for creates.
func exclusions(t *testing.T, name, kind string) (n float64) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "apiserver_admission_match_condition_exclusions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			got := map[string]string{}
			for _, l := range m.GetLabel() {
				got[l.GetName()] = l.GetValue()
			}
			if cmp.Equal(got, map[string]string{"kind": "webhook", "name": name, "operation": "CREATE", "type": kind}) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// TestWithoutMetrics checks that the plug-ins work without a registry.
func TestWithoutMetrics(t *testing.T) {
	server := newHookServer(t)
	server.say = answerOf(`"allowed":true`)
	s := newSetting(t, Protection{}, func(s *setting) { s.host.Metrics = nil })
	s.register(t, false, webhookOf(server, "w"))
	if got := s.outcome(t, server, creation()); got != "allowed" {
		t.Error(got)
	}
}
