// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

// Garden is the operator's kind as its code knows it: version v1.
type Garden struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              GardenSpec   `json:"spec,omitempty"`
	Status            GardenStatus `json:"status,omitempty"`
}

// GardenSpec is what is to be planted.
type GardenSpec struct {
	Plants int64  `json:"plants"`
	Soil   string `json:"soil,omitempty"`
}

// GardenStatus is what has been.
type GardenStatus struct {
	Planted    int64              `json:"planted,omitempty"`
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// GardenList is a list of Gardens.
type GardenList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Garden `json:"items"`
}

// OldGarden is the kind as it is stored: version v1beta1, where plants were called size.
type OldGarden struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              OldGardenSpec `json:"spec,omitempty"`
	Status            GardenStatus  `json:"status,omitempty"`
}

// OldGardenSpec is GardenSpec in v1beta1.
type OldGardenSpec struct {
	Size int64  `json:"size"`
	Soil string `json:"soil,omitempty"`
}

func (s *GardenStatus) copied() GardenStatus {
	out := *s
	out.Conditions = append([]metav1.Condition(nil), s.Conditions...)
	return out
}

// DeepCopyObject copies.
func (g *Garden) DeepCopyObject() runtime.Object {
	out := *g
	out.ObjectMeta = *g.ObjectMeta.DeepCopy()
	out.Status = g.Status.copied()
	return &out
}

// DeepCopyObject copies.
func (g *OldGarden) DeepCopyObject() runtime.Object {
	out := *g
	out.ObjectMeta = *g.ObjectMeta.DeepCopy()
	out.Status = g.Status.copied()
	return &out
}

// DeepCopyObject copies.
func (l *GardenList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Garden))
	}
	return &out
}

// Hub marks the version that all others are converted to.
func (g *Garden) Hub() {}

// ConvertTo makes a v1 of a v1beta1.
func (g *OldGarden) ConvertTo(hub conversion.Hub) error {
	out := hub.(*Garden)
	out.ObjectMeta, out.Status = g.ObjectMeta, g.Status
	out.Spec = GardenSpec{Plants: g.Spec.Size, Soil: g.Spec.Soil}
	return nil
}

// ConvertFrom makes a v1beta1 of a v1.
func (g *OldGarden) ConvertFrom(hub conversion.Hub) error {
	in := hub.(*Garden)
	g.ObjectMeta, g.Status = in.ObjectMeta, in.Status
	g.Spec = OldGardenSpec{Size: in.Spec.Plants, Soil: in.Spec.Soil}
	return nil
}

func gardenScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	group := schema.GroupVersion{Group: "gardens.example.com", Version: "v1"}
	s.AddKnownTypeWithName(group.WithKind("Garden"), &Garden{})
	s.AddKnownTypeWithName(group.WithKind("GardenList"), &GardenList{})
	metav1.AddToGroupVersion(s, group)
	old := schema.GroupVersion{Group: group.Group, Version: "v1beta1"}
	s.AddKnownTypeWithName(old.WithKind("Garden"), &OldGarden{})
	metav1.AddToGroupVersion(s, old)
	return s, s.SetVersionPriority(group, old)
}

// gardenDefinition stores v1beta1, and has a webhook convert to and from v1.
func gardenDefinition(url string, authority []byte) *unstructured.Unstructured {
	version := func(name, field string, storage bool) map[string]any {
		text, number := map[string]any{"type": "string"}, map[string]any{"type": "integer"}
		return map[string]any{
			"name": name, "served": true, "storage": storage, "subresources": map[string]any{"status": map[string]any{}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
				"spec": map[string]any{"type": "object", "properties": map[string]any{field: number, "soil": text}},
				"status": map[string]any{"type": "object", "properties": map[string]any{
					"planted": number,
					"conditions": map[string]any{
						"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": []any{"type"},
						"items": map[string]any{"type": "object", "required": []any{"type", "status"}, "properties": map[string]any{
							"type": text, "status": text, "reason": text, "message": text, "observedGeneration": number,
							"lastTransitionTime": map[string]any{"type": "string", "format": "date-time"},
						}},
					},
				}},
			}}},
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "gardens.gardens.example.com"},
		"spec": map[string]any{
			"group": "gardens.example.com", "scope": "Namespaced", "names": map[string]any{"plural": "gardens", "kind": "Garden"},
			"versions": []any{version("v1", "plants", false), version("v1beta1", "size", true)},
			"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{
				"clientConfig":             map[string]any{"url": url + "/convert", "caBundle": string(authority)},
				"conversionReviewVersions": []any{"v1"},
			}},
		},
	}}
}
