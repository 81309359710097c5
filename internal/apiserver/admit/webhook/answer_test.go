// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/resource"
)

// FuzzAnswer parses arbitrary responses in both versions and from both kinds of webhooks. An accepted response follows
// the rules, and its patch results in an object of the same kind or in an error.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEvYiIsInZhbHVlIjoiYyJ9XQ=="}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"code":200,"status":"Success","message":"no"},"warnings":["w"],"auditAnnotations":{"a":"b"}}}`,
		// an unknown status, which is passed on unchanged, as upstream does
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"status":"Refused"}}}`,
		`{"response":{"uid":"u","patchType":"","patch":"e30="}}`, `{"response":null}`, `[]`, `7`,
		`{"response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiIn1d"}}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	d := &resource.Descriptor{Resource: "configmaps", Kind: "ConfigMap", Namespaced: true,
		Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.ConfigMap{} }}}, Storage: "v1",
		Prefix: "configmaps"}
	p := NewMutating(Options{})
	p.host = &admit.Host{Kinds: func() []*resource.Descriptor { return []*resource.Descriptor{d} },
		Kind: func(schema.GroupResource) *resource.Descriptor { return d }}
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	f.Fuzz(func(t *testing.T, said []byte, mutating bool) {
		for _, version := range []string{"v1", "v1beta1"} {
			review := emptyAnswer(version)
			if json.Unmarshal(said, review) != nil {
				continue
			}
			a, err := check("u", mutating, review)
			if err != nil {
				continue
			}
			if !a.allowed {
				if st := refusal(`"w"`, a.result).ErrStatus; st.Code < 400 || st.Status == "" || st.Status == "Success" || st.Message == "" {
					t.Errorf("a refusal is %+v", st)
				}
			}
			if len(a.patch) == 0 {
				continue
			}
			if !mutating || version == "v1" && a.patchType == "" {
				t.Errorf("believed %+v", a)
			}
			if len(a.patch) > 1<<16 {
				continue
			}
			patch, err := jsonpatch.DecodePatch(a.patch)
			if err != nil || a.patchType != admissionv1.PatchTypeJSONPatch {
				continue
			}
			obj := &corev1.ConfigMap{Data: map[string]string{"a": "b"}}
			obj.SetGroupVersionKind(kind)
			raw, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			patched, err := patch.Apply(raw)
			if err != nil {
				continue
			}
			q := matching.NewRequest(p.host, nil, &admit.Attributes{Operation: admit.Create, Descriptor: d, Version: "v1", Object: obj})
			out, err := p.decode(q, &matching.Versioned{Form: matching.Form{Kind: kind}, Object: obj}, patched)
			if _, ok := out.(*corev1.ConfigMap); err == nil && !ok {
				t.Errorf("a %T came of %s", out, patched)
			}
		}
	})
}

// TestReviewVersions checks that a webhook is called in the first version of its list that the server supports. v1
// responses must name their version and their review. v1beta1 responses need not, and their patches are JSON patches.
func TestReviewVersions(t *testing.T) {
	const (
		plain   = `{"response":{"allowed":true}}`
		patched = `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","response":{"allowed":true,` +
			`"patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL21ldGFkYXRhL2xhYmVscy9hIiwidmFsdWUiOiJiIn1d"}}`
		invalid = `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": received invalid webhook response: `
	)
	for _, c := range []struct {
		versions string
		mutating bool
		say      string
		want     string
		asked    string
	}{
		{"v1", false, answerOf(`"allowed":true`), "allowed", "admission.k8s.io/v1"},
		{"v1 v1beta1", false, answerOf(`"allowed":true`), "allowed", "admission.k8s.io/v1"},
		{"v2 v1beta1 v1", false, plain, "allowed", "admission.k8s.io/v1beta1"},
		{"v1beta1", true, plain, "allowed", "admission.k8s.io/v1beta1"},
		{"v1beta1", true, patched, "allowed\nlabels map[a:b team:a]", "admission.k8s.io/v1beta1"},
		{"v1beta1", false, patched, "allowed", "admission.k8s.io/v1beta1"},
		{"v1beta1", false, `{}`, invalid + "webhook response was absent", "admission.k8s.io/v1beta1"},
		{"v1beta1", false, `{"response":{"allowed":false,"status":{"message":"no"}}}`,
			`400 : admission webhook "w.example.com" denied the request: no`, "admission.k8s.io/v1beta1"},
		{"v1", false, `{"response":{"uid":"UID","allowed":true}}`,
			invalid + "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=", "admission.k8s.io/v1"},
		{"v2 v3", false, plain, `500 InternalError: Internal error occurred: failed calling webhook "w.example.com": ` +
			"could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)", ""},
	} {
		server := newHookServer(t)
		server.say = c.say
		s := newSetting(t, Protection{})
		h := webhookOf(server, "w")
		h.AdmissionReviewVersions = strings.Fields(c.versions)
		s.register(t, c.mutating, h)
		got := s.outcome(t, server, creation())
		if got, _, _ = strings.Cut(got, "\nmutation.webhook"); got != c.want {
			t.Errorf("%s, mutating %v, %s:\n got %s\nwant %s", c.versions, c.mutating, c.say, got, c.want)
		}
		if c.asked == "" {
			if n := len(server.paths()); n > 0 {
				t.Errorf("%s: asked %d times", c.versions, n)
			}
			continue
		}
		if asked := server.newest(t).APIVersion; asked != c.asked {
			t.Errorf("%s: asked in %s", c.versions, asked)
		}
	}
}

// TestRefusals checks that a webhook's rejection reaches the client as an error status.
func TestRefusals(t *testing.T) {
	const by = `admission webhook "w.example.com" denied the request`
	for say, want := range map[string]metav1.Status{
		`"allowed":false`: {Status: "Failure", Code: 400, Message: by + " without explanation"},
		`"allowed":false,"status":{"status":"Refused","code":599,"reason":"Odd","message":"no","details":{"name":"x"}}`: {
			Status: "Refused", Code: 599, Reason: "Odd", Message: by + ": no", Details: &metav1.StatusDetails{Name: "x"},
		},
		`"allowed":false,"status":{"status":"Success","code":399}`: {Status: "Failure", Code: 400, Message: by + " without explanation"},
		`"allowed":false,"status":{"reason":"Gone","code":410}`:    {Status: "Failure", Code: 410, Reason: "Gone", Message: by + ": Gone"},
	} {
		server := newHookServer(t)
		server.say = answerOf(say)
		s := newSetting(t, Protection{})
		s.register(t, false, webhookOf(server, "w"))
		a := creation()
		a.Descriptor = s.kinds[0]
		var got apierrors.APIStatus
		if err := s.admit(t.Context(), a); !errors.As(err, &got) {
			t.Errorf("%s: %v", say, err)
		} else if d := cmp.Diff(want, got.Status()); d != "" {
			t.Errorf("%s (-want +got):\n%s", say, d)
		}
	}
}

// TestAnswersAreBooked checks that the ledger counts an invalid response as a failed call, and a rejection as a
// successful one.
func TestAnswersAreBooked(t *testing.T) {
	for say, want := range map[string]extension.State{
		answerOf(`"allowed":true`):                                                extension.OK,
		answerOf(`"allowed":false`):                                               extension.OK,
		answerOf(`"allowed":false,"patchType":"JSONPatch","patch":"e30="`):        extension.OK,
		answerOf(`"allowed":true,"patchType":"Merge","patch":"W10="`):             extension.OK,
		answerOf(`"allowed":true,"patchType":"JSONPatch"`):                        extension.Failing,
		answerOf(`"allowed":true,"patchType":"JSONPatch","patch":"e30="`):         extension.Failing,
		answerOf(`"allowed":true,"patchType":"Merge","patch":"W3sib3AiOiJhIn1d"`): extension.Failing,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`:           extension.Failing,
		`nonsense`: extension.Failing,
	} {
		server := newHookServer(t)
		server.say = say
		s := newSetting(t, Protection{})
		s.register(t, true, webhookOf(server, "w"))
		_ = s.outcome(t, server, creation())
		if e := s.host.Ledger.Snapshot()[0]; e.State != want || e.Calls != 1 {
			t.Errorf("%s: %s after %d calls, want %s", say, e.State, e.Calls, want)
		}
	}
}
