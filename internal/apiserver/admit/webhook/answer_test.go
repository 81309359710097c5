// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/resource"
)

// FuzzAnswer reads whatever a webhook says, in both versions and from both kinds: an answer that is believed keeps the rules, and what
// its patch makes of an object is read as an object of the same kind or not at all.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJhZGQiLCJwYXRoIjoiL2RhdGEvYiIsInZhbHVlIjoiYyJ9XQ=="}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"code":200,"status":"Success","message":"no"},"warnings":["w"],"auditAnnotations":{"a":"b"}}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"u","allowed":false,"status":{"status":"Refused"}}}`, // a word of its own: told on as it is, as upstream tells it
		`{"response":{"uid":"u","patchType":"","patch":"e30="}}`, `{"response":null}`, `[]`, `7`, `{"response":{"uid":"u","allowed":true,"patchType":"JSONPatch","patch":"W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiIn1d"}}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	d := &resource.Descriptor{Resource: "configmaps", Kind: "ConfigMap", Namespaced: true, Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.ConfigMap{} }}}, Storage: "v1", Prefix: "configmaps"}
	p := NewMutating(Options{})
	p.host = &admit.Host{Kinds: func() []*resource.Descriptor { return []*resource.Descriptor{d} }, Kind: func(schema.GroupResource) *resource.Descriptor { return d }}
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
