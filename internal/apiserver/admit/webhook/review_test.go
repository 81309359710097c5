// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/resource"
)

// TestReviewsAreWhatTheEncoderWrites compares reviews, byte by byte, with the encoding of upstream's types.
func TestReviewsAreWhatTheEncoderWrites(t *testing.T) {
	d := &resource.Descriptor{Group: "g.example.com", Resource: "things", Kind: "Thing", Namespaced: true,
		Versions: []resource.Version{{Name: "v1"}}, Storage: "v1"}
	odd := "<a >~&\"\\\u2028\u00e9\n\xff"
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: odd}, Data: map[string]string{"k": odd}}
	cases := map[string]*admit.Attributes{
		"plain": {Operation: admit.Create, Namespace: "ns", Name: "a", Object: cm, User: &user.DefaultInfo{Name: "jane"},
			Options: &metav1.CreateOptions{}},
		"odd": {Operation: admit.Update, Subresource: odd, Namespace: odd, Name: odd, Object: cm, Old: cm, DryRun: true,
			User: &user.DefaultInfo{Name: odd, UID: odd, Groups: []string{odd}, Extra: map[string][]string{odd: {odd}, "b": nil}}},
		"nobody":  {Operation: admit.Delete, Old: cm},
		"connect": {Operation: admit.Connect, Subresource: "exec", Object: cm, Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{}},
	}
	for _, c := range []string{"<", ">", "&", "\"", "\\", "\u2028", "\u00e9", "\n", "\xff", " ", "~"} {
		cases[fmt.Sprintf("%q", c)] = &admit.Attributes{Operation: admit.Create, Namespace: c, Name: c, Object: cm}
	}
	for name, a := range cases {
		t.Run(name, func(t *testing.T) {
			a.Descriptor, a.Version = d, "v1"
			q := matching.NewRequest(&admit.Host{}, nil, a)
			v := &matching.Versioned{Form: *q.Form()}
			if a.Object != nil {
				v.Object = a.Object
			}
			if a.Old != nil {
				v.Old = a.Old
			}
			r := &reviews{q: q}
			for _, version := range []string{"v1", "v1beta1"} {
				uid, _, got, err := r.of(&hook{versions: []string{version}}, v)
				if err != nil {
					t.Fatal(err)
				}
				raw := func(obj runtime.Object) (out runtime.RawExtension) {
					var err error
					if out.Raw, err = json.Marshal(obj); err != nil {
						t.Fatal(err)
					}
					return out
				}
				var object, old, options runtime.RawExtension
				if a.Object != nil {
					object = raw(a.Object)
				}
				if a.Old != nil {
					old = raw(a.Old)
				}
				if a.Options != nil && a.Operation != admit.Connect {
					options = raw(a.Options)
				}
				info := authenticationv1.UserInfo{}
				if a.User != nil {
					info = authenticationv1.UserInfo{Username: a.User.GetName(), UID: a.User.GetUID(), Groups: a.User.GetGroups(),
						Extra: map[string]authenticationv1.ExtraValue{}}
					for k, values := range a.User.GetExtra() {
						info.Extra[k] = values
					}
				}
				kind, res := metav1.GroupVersionKind(v.Kind), metav1.GroupVersionResource(v.Resource)
				var review any = &admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
					Request: &admissionv1.AdmissionRequest{
						UID: uid, Kind: kind, Resource: res, SubResource: a.Subresource, RequestKind: &kind, RequestResource: &res,
						RequestSubResource: a.Subresource, Name: a.Name, Namespace: a.Namespace,
						Operation: admissionv1.Operation(a.Operation), UserInfo: info, Object: object, OldObject: old, DryRun: ptr.To(a.DryRun),
						Options: options,
					}}
				if version == "v1beta1" {
					review = &admissionv1beta1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1beta1", Kind: "AdmissionReview"},
						Request: &admissionv1beta1.AdmissionRequest{
							UID: uid, Kind: kind, Resource: res, SubResource: a.Subresource, RequestKind: &kind, RequestResource: &res,
							RequestSubResource: a.Subresource, Name: a.Name, Namespace: a.Namespace,
							Operation: admissionv1beta1.Operation(a.Operation), UserInfo: info, Object: object, OldObject: old, DryRun: ptr.To(a.DryRun),
							Options: options,
						}}
				}
				want, err := json.Marshal(review)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), string(got)); diff != "" {
					t.Errorf("%s:\n%s", version, diff)
				}
			}
		})
	}
}
