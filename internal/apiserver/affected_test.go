// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// shelf has objects by their resource.
type shelf map[string][]resource.Object

func (s shelf) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	for _, o := range s[r.String()] {
		if o.GetNamespace() == namespace && o.GetName() == name {
			return o, nil
		}
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (s shelf) List(_ context.Context, r schema.GroupResource, _ string) ([]resource.Object, error) {
	return s[r.String()], nil
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func inShop(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }

func autoscalerBy(name string, source autoscalingv2.MetricSourceType) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: inShop(name),
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: []autoscalingv2.MetricSpec{{Type: source}}}}
}

func sliceOf(driver, node string) *resourcev1.ResourceSlice {
	return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: ptr.To(node)}}
}

func rulesFor(group string, resources ...string) []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}}
}

// TestAffectedByExtensions asks at each point what a dead extension affects, with objects that configure it or depend on it.
func TestAffectedByExtensions(t *testing.T) {
	ignore := ptr.To(admissionregistrationv1.Ignore)
	constraints := &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
		{RuleWithOperations: rulesFor("apps", "deployments", "deployments/scale")[0]}}}
	all := shelf{
		"mutatingwebhookconfigurations.admissionregistration.k8s.io": {&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: named("m"), Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "a", Rules: rulesFor("*", "*")},
				{Name: "b", Rules: rulesFor("", "pods"), FailurePolicy: ignore}}}},
		"validatingwebhookconfigurations.admissionregistration.k8s.io": {&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: named("v"), Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: "a", Rules: rulesFor("", "pods")}}}},
		"mutatingadmissionpolicies.admissionregistration.k8s.io": {&admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: named("m"),
			Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{MatchConstraints: constraints, FailurePolicy: ignore}}},
		"validatingadmissionpolicies.admissionregistration.k8s.io": {&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: named("v"),
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{MatchConstraints: constraints}}},
		"initializerconfigurations.extension.mortise.dev": {&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "extension.mortise.dev/v1alpha1", "kind": "InitializerConfiguration", "metadata": map[string]any{"name": "i"},
			"initializers": []any{map[string]any{"name": "i.example.com",
				"rules": []any{map[string]any{"apiGroups": []any{"batch"}, "apiVersions": []any{"v1"}, "resources": []any{"jobs"}}}}}}}},
		definitions.String(): {&apiextensionsv1.CustomResourceDefinition{ObjectMeta: named("boxes.example.com"),
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com",
				Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boxes"},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true},
					{Name: "v2", Served: true}, {Name: "v3"}}}}},
		"storageclasses.storage.k8s.io": {&storagev1.StorageClass{ObjectMeta: named("fast"), Provisioner: "csi.example.com"},
			&storagev1.StorageClass{ObjectMeta: named("slow"), Provisioner: "other.example.com"}},
		"persistentvolumes": {&corev1.PersistentVolume{ObjectMeta: named("pv-1"), Spec: corev1.PersistentVolumeSpec{
			ClaimRef:               &corev1.ObjectReference{Namespace: "shop", Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "csi.example.com"}}}},
			&corev1.PersistentVolume{ObjectMeta: named("pv-2")}},
		"resourceslices.resource.k8s.io": {sliceOf("gpu.example.com", "n1"), sliceOf("gpu.example.com", "n1"), sliceOf("other", "n2")},
		"resourceclaims.resource.k8s.io": {&resourcev1.ResourceClaim{ObjectMeta: inShop("gpu"),
			Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Driver: "gpu.example.com"}}}}}},
			&resourcev1.ResourceClaim{ObjectMeta: inShop("waits")}},
		"nodes": {&corev1.Node{ObjectMeta: named("n1"),
			Status: corev1.NodeStatus{Capacity: corev1.ResourceList{"example.com/fpga": apiresource.MustParse("2")}}},
			&corev1.Node{ObjectMeta: named("n2")}},
		"horizontalpodautoscalers.autoscaling": {autoscalerBy("cpu", autoscalingv2.ResourceMetricSourceType),
			autoscalerBy("queue", autoscalingv2.ExternalMetricSourceType), autoscalerBy("requests", autoscalingv2.PodsMetricSourceType)},
	}
	for _, c := range []struct {
		point      extension.Point
		name       string
		configured string
		want       []string
	}{
		{extension.MutatingWebhook, "m/a", "", []string{"refused: create, update * of all groups"}},
		{extension.MutatingWebhook, "m/b", "", []string{"unchecked: create, update pods"}},
		{extension.ValidatingWebhook, "v/a", "", []string{"refused: create, update pods"}},
		{extension.ValidatingWebhook, "v/gone", "", []string{"refused: requests that it matches"}},
		{extension.MutatingPolicy, "m", "", []string{"unchecked: create, update deployments.apps, deployments.apps/scale"}},
		{extension.ValidatingPolicy, "v", "", []string{"refused: create, update deployments.apps, deployments.apps/scale"}},
		{extension.Initializer, "i.example.com", "InitializerConfiguration/i", []string{"delayed: create jobs.batch"}},
		{extension.ConversionWebhook, "boxes.example.com", "", []string{"unavailable: boxes.example.com/v2"}},
		{extension.AggregatedAPI, "v1.agg.io", "APIService/v1.agg.io", []string{"unavailable: agg.io/v1"}},
		{extension.StorageDriver, "csi.example.com", "",
			[]string{"delayed: mounts of volume pv-1 (claim shop/data)", "delayed: new volumes of class fast"}},
		{extension.StorageDriver, "none.example.com", "", []string{"delayed: mounts of its volumes"}},
		{extension.ResourceDriver, "gpu.example.com", "", []string{"unavailable: devices of node n1", "delayed: new pods with claim shop/gpu"}},
		{extension.DevicePlugin, "example.com/fpga", "", []string{"unavailable: example.com/fpga of node n1"}},
		{extension.MetricsAPI, "built-in", "", []string{"delayed: autoscaler shop/cpu", "unavailable: kubectl top"}},
		{extension.MetricsAPI, "v1beta2.custom.metrics.k8s.io", "", []string{"delayed: autoscaler shop/requests"}},
		{extension.MetricsAPI, "route", "", []string{"delayed: autoscaler shop/queue"}},
	} {
		var got []string
		for _, a := range affectedBy(t.Context(), all, &extension.Row{Point: c.point, Name: c.name, Configured: c.configured}) {
			got = append(got, string(a.Effect)+": "+a.What)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s %s (-want +got):\n%s", c.point, c.name, diff)
		}
	}
	// No point that the server calls is without an answer, whatever is stored.
	for _, p := range extension.Points() {
		if p.Way == extension.Called && len(affectedBy(t.Context(), shelf{}, &extension.Row{Point: p.Point, Name: "x"})) == 0 {
			t.Errorf("nothing is said of what a dead extension at %s affects", p.Point)
		}
	}
}
