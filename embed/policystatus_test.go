// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestPolicyStatus: expressions are checked against the schemas of native kinds, of custom ones made a moment ago, and of
// parameters; each generation anew.
func TestPolicyStatus(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"validatingadmissionpolicy-status-controller"}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiextensions.GroupName + "/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets.example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Cluster", "names": map[string]any{"plural": "widgets", "kind": "Widget"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{"size": map[string]any{"type": "integer"}},
				}}}},
		},
	}}
	crds := dynamic.NewForConfigOrDie(s.Config()).Resource(schema.GroupVersionResource{Group: apiextensions.GroupName, Version: "v1",
		Resource: "customresourcedefinitions"})
	if _, err := crds.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rule := func(group, version string, resources ...string) admissionv1.NamedRuleWithOperations {
		return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{"*"}, Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{version},
				Resources: resources},
		}}
	}
	policies := s.Client().AdmissionregistrationV1().ValidatingAdmissionPolicies()
	policy, err := policies.Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
				rule("apps", "v1", "deployments"), rule("example.com", "v1", "widgets"), rule("*", "v1", "pods"), rule("nowhere.io", "v1", "things"),
			}},
			ParamKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
			Validations: []admissionv1.Validation{
				{Expression: "object.metadata.name != ''"},
				{Expression: "object.size > 1", MessageExpression: "'' + params.dat.x"},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := checked(ctx, t, s.Client(), policy)
	missing := func(at, name, in, dots string) string {
		return "ERROR: <input>:1:" + at + ": undefined field '" + name + "'\n | " + in + "\n | " + dots + "^\n"
	}
	want := []admissionv1.ExpressionWarning{
		{FieldRef: "spec.validations[1].expression", Warning: "apps/v1, Kind=Deployment: " + missing("7", "size", "object.size > 1", "......")},
		{
			FieldRef: "spec.validations[1].messageExpression",
			Warning: "apps/v1, Kind=Deployment: " + missing("12", "dat", "'' + params.dat.x", "...........") + "\nexample.com/v1, Kind=Widget: " +
				missing("12", "dat", "'' + params.dat.x", "..........."),
		},
	}
	if d := cmp.Diff(want, got.Status.TypeChecking.ExpressionWarnings); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
	got.Spec.Validations = got.Spec.Validations[:1]
	if policy, err = policies.Update(ctx, got, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got = checked(ctx, t, s.Client(), policy); got.Generation != 2 || got.Status.TypeChecking != nil &&
		len(got.Status.TypeChecking.ExpressionWarnings) != 0 {
		t.Errorf("generation %d has the status %+v", got.Generation, got.Status)
	}
}

// checked is the policy when its newest generation has been checked.
func checked(ctx context.Context, t *testing.T, client kubernetes.Interface,
	p *admissionv1.ValidatingAdmissionPolicy) *admissionv1.ValidatingAdmissionPolicy {
	t.Helper()
	lw := cache.NewListWatchFromClient(client.AdmissionregistrationV1().RESTClient(), "validatingadmissionpolicies", "",
		fields.OneTermEqualSelector("metadata.name", p.Name))
	event, err := watchtools.UntilWithSync(ctx, lw, &admissionv1.ValidatingAdmissionPolicy{}, nil, func(e watch.Event) (bool, error) {
		now, ok := e.Object.(*admissionv1.ValidatingAdmissionPolicy)
		return ok && now.Status.ObservedGeneration >= p.Generation, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return event.Object.(*admissionv1.ValidatingAdmissionPolicy)
}
