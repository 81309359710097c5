// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// TestPartialJSON compares a metadata form that is made of kept bytes with the encoded form. Fields of former versions, which are kept
// as annotations, are in neither.
func TestPartialJSON(t *testing.T) {
	m := metav1.ObjectMeta{Name: "n", Namespace: "ns", Annotations: map[string]string{"a": "<&>\u2028", appsv1.DeprecatedRollbackTo: "3"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{}}`)}}}}
	for _, obj := range []resource.Object{&corev1.ConfigMap{ObjectMeta: m}, &corev1.ConfigMap{}, &appsv1.Deployment{ObjectMeta: m}} {
		for _, version := range []string{"v1", "v1beta1"} {
			to := table.Target{Group: "meta.k8s.io", Version: version, Kind: "PartialObjectMetadata"}
			want, err := json.Marshal(table.Partial(to, obj))
			if err != nil {
				t.Fatal(err)
			}
			f := &watchcache.CachedObject{Hub: obj}
			for range 2 {
				if got, err := partialJSON(to, f); err != nil || string(got) != string(want) {
					t.Errorf("%T: %s, want %s; error %v", obj, got, want, err)
				}
			}
		}
	}
}
