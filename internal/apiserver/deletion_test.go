// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
)

// TestDeletion explains why objects are not deleted.
func TestDeletion(t *testing.T) {
	for _, c := range []struct {
		of   schema.GroupResource
		text string
		want trace.Deletion
	}{
		{schema.GroupResource{Resource: "pods"}, `
metadata:
  {name: web, namespace: shop, uid: u, deletionTimestamp: "2026-11-28T00:00:30Z", deletionGracePeriodSeconds: 30,
   finalizers: [batch.kubernetes.io/job-tracking, "example.com/a\"b"],
   managedFields: [{manager: operator, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {"f:finalizers": {'v:"example.com/a\"b"': {}}}}},
                   {manager: other, fieldsType: FieldsV1, fieldsV1: {"f:metadata": {"f:labels": {}}}}]}`,
			trace.Deletion{
				Resource: "pods", Namespace: "shop", Name: "web", UID: "u", Since: "2026-11-28T00:00:00Z", GraceSeconds: ptr.To(int64(30)),
				Finalizers: []trace.Finalizer{
					{Name: "batch.kubernetes.io/job-tracking", Remover: "the job controller", Until: "the job has counted the pod"},
					{Name: `example.com/a"b`, AddedBy: []string{"operator"}},
				},
			}},
		{schema.GroupResource{Resource: "namespaces"}, `
metadata: {name: shop, uid: u, deletionTimestamp: "2026-11-28T00:00:00Z"}
spec: {finalizers: [kubernetes]}
status: {conditions: [{type: NamespaceContentRemaining, status: "True", reason: SomeResourcesRemain, message: pods. has 1},
                      {type: NamespaceDeletionDiscoveryFailure, status: "False"}]}`,
			trace.Deletion{
				Resource: "namespaces", Name: "shop", UID: "u", Since: "2026-11-28T00:00:00Z",
				Finalizers: []trace.Finalizer{{Name: "kubernetes", Remover: "the namespace controller", Until: "the namespace is empty"}},
				Remains: []trace.Remaining{
					{Type: "NamespaceContentRemaining", Reason: "SomeResourcesRemain", Message: "pods. has 1"},
				},
			}},
		{schema.GroupResource{Group: "storage.k8s.io", Resource: "volumeattachments"},
			`metadata: {name: v, finalizers: [external-attacher/d-example-com]}`,
			trace.Deletion{Group: "storage.k8s.io", Resource: "volumeattachments", Name: "v", Finalizers: []trace.Finalizer{
				{Name: "external-attacher/d-example-com", Remover: "the attacher of the CSI driver", Until: "the volume is detached from all nodes"},
			}}},
		{schema.GroupResource{Resource: "pods"}, `metadata: {name: plain}`,
			trace.Deletion{Resource: "pods", Name: "plain", Finalizers: []trace.Finalizer{}}},
	} {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(c.text), &u.Object); err != nil {
			t.Fatal(err)
		}
		if n, ok := u.Object["metadata"].(map[string]any)["deletionGracePeriodSeconds"].(float64); ok {
			u.Object["metadata"].(map[string]any)["deletionGracePeriodSeconds"] = int64(n) // as the API's decoder reads it
		}
		if diff := cmp.Diff(&c.want, deletionOf(c.of, u)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.of, diff)
		}
	}
}

// TestAffected names what dead extensions affect.
func TestAffected(t *testing.T) {
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"", "apps"}, Resources: []string{"pods", "deployments/scale"},
			Scope: ptr.To(admissionregistrationv1.NamespacedScope),
		},
	}
	all := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"*"}, Resources: []string{"*"}},
	}
	got := affectedRequests([]admissionregistrationv1.RuleWithOperations{rule, all, all}, nil)
	want := []extension.Affected{
		{What: "create, update pods, deployments/scale (namespaced)", Effect: extension.Refused},
		{What: "create, update pods.apps, deployments.apps/scale (namespaced)", Effect: extension.Refused},
		{What: "* * of all groups", Effect: extension.Refused},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a webhook affects (-want +got):\n%s", diff)
	}
	if got := affectedRequests([]admissionregistrationv1.RuleWithOperations{all}, ptr.To(admissionregistrationv1.Ignore)); len(got) != 1 ||
		got[0].Effect != extension.Unchecked {
		t.Errorf("a webhook that is ignored affects %v", got)
	}
	d := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
		Group: "example.com", Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets"},
		Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
			{Name: "v1", Served: true, Storage: true}, {Name: "v1beta1", Served: true}, {Name: "v1alpha1"},
		},
	}}
	want = []extension.Affected{{What: "widgets.example.com/v1beta1", Effect: extension.Unavailable}}
	if diff := cmp.Diff(want, affectedVersions(d)); diff != "" {
		t.Errorf("a conversion affects (-want +got):\n%s", diff)
	}
}
