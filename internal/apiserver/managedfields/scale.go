// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// scaleKind is the kind of the scale subresource of all resources.
var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// ScaleEntries converts the entries of a parent to entries of its Scale. A write to the scale subresource changes the
// Scale: the owners of the parent's replicas become owners of the Scale's replicas, [Manager.UpdateScale] or
// [Manager.ApplyScale] records the write there, and [Manager.ParentEntries] converts the result back.
func (m *Manager) ScaleEntries(d *resource.Descriptor, version string, parent resource.Object) ([]metav1.ManagedFieldsEntry, error) {
	entries, err := scaleHandler(d, version, parent).ToSubresource()
	if err != nil {
		return nil, fmt.Errorf("read managed fields: %w", err)
	}
	return entries, nil
}

// ParentEntries returns the entries of a parent after a write that resulted in the given entries of its Scale.
func (m *Manager) ParentEntries(d *resource.Descriptor, version string, parent resource.Object,
	scale []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error) {
	entries, err := scaleHandler(d, version, parent).ToParent(scale)
	if err != nil {
		return nil, fmt.Errorf("write managed fields: %w", err)
	}
	return entries, nil
}

func scaleHandler(d *resource.Descriptor, version string, parent resource.Object) *managedfields.ScaleHandler {
	paths := managedfields.ResourcePathMappings{}
	for _, v := range d.Versions {
		paths[schema.GroupVersion{Group: d.Group, Version: v.Name}.String()] = replicas(d, v.Name)
	}
	return managedfields.NewScaleHandler(parent.GetManagedFields(), schema.GroupVersion{Group: d.Group, Version: version}, paths)
}

// UpdateScale records in after which of its fields manager changed, compared with before; see [Manager.Update].
func (m *Manager) UpdateScale(before, after resource.Object, manager string) (resource.Object, error) {
	f, err := m.scale()
	if err != nil {
		return nil, err
	}
	if _, err := f.Update(before, after, manager); err != nil {
		m.log.Debug("Could not update managed fields", "kind", scaleKind.Kind, "name", after.GetName(), "error", err)
		after.SetManagedFields(before.GetManagedFields())
	}
	return after, nil
}

// ApplyScale merges a configuration of a Scale into before; see [Manager.Apply].
func (m *Manager) ApplyScale(before resource.Object, patch *unstructured.Unstructured, manager string, force bool) (resource.Object,
	error) {
	f, err := m.scale()
	if err != nil {
		return nil, err
	}
	merged, err := f.Apply(before, patch, manager, force)
	if err != nil {
		return nil, err
	}
	switch o := merged.(type) {
	case *autoscalingv1.Scale:
		return o, nil
	case *unstructured.Unstructured:
		s := &autoscalingv1.Scale{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, s); err != nil {
			return nil, fmt.Errorf("convert merged Scale: %w", err)
		}
		return s, nil
	}
	return nil, fmt.Errorf("apply made a %T", merged)
}

// replicas returns the path of the field that a kind's scale sets; nil: the version has no scale.
func replicas(d *resource.Descriptor, version string) fieldpath.Path {
	names := []string{"spec", "replicas"}
	if custom(d) {
		names = crd.ReplicasPath(d, version)
	}
	var p fieldpath.Path
	for _, name := range names {
		p = append(p, fieldpath.PathElement{FieldName: &name})
	}
	return p
}

// newScale makes the field manager of Scale objects. client-go has no schema of them.
func newScale() (*managedfields.FieldManager, error) {
	const prefix = "io.k8s.api.autoscaling.v1."
	all, err := readModels(metaPrefix, prefix)
	if err != nil {
		return nil, err
	}
	if s := all[prefix+"Scale"]; s != nil {
		s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": scaleKind.Group, "version": scaleKind.Version,
			"kind": scaleKind.Kind}})
	}
	c, err := managedfields.NewTypeConverter(all, false)
	if err != nil {
		return nil, fmt.Errorf("read schema of scale: %w", err)
	}
	f, err := managedfields.NewDefaultFieldManager(c, scaleConverter{}, scaleConverter{}, scaleConverter{}, scaleKind,
		scaleKind.GroupVersion(), "scale", nil)
	if err != nil {
		return nil, fmt.Errorf("make field manager of scale: %w", err)
	}
	return f, nil
}

// scaleConverter is the object converter for Scale.
type scaleConverter struct{}

// ConvertToVersion gives a Scale its kind.
func (scaleConverter) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	if u, ok := in.(*unstructured.Unstructured); ok && u.GroupVersionKind() == scaleKind {
		s := &autoscalingv1.Scale{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, s); err != nil {
			return nil, fmt.Errorf("convert merged Scale: %w", err)
		}
		return s, nil
	}
	s, ok := in.(*autoscalingv1.Scale)
	if !ok {
		return nil, runtime.NewNotRegisteredErrForKind("managed fields", in.GetObjectKind().GroupVersionKind())
	}
	return withKind(s, scaleKind), nil
}

// Convert is not used by field managers.
func (scaleConverter) Convert(in, _, _ any) error { return fmt.Errorf("convert %T: unsupported", in) }

// ConvertFieldLabel is not used by field managers.
func (scaleConverter) ConvertFieldLabel(_ schema.GroupVersionKind, label, _ string) (string, string, error) {
	return "", "", fmt.Errorf("convert field label %q: unsupported", label)
}

// Default does nothing.
func (scaleConverter) Default(runtime.Object) {}

// New returns an empty Scale.
func (scaleConverter) New(schema.GroupVersionKind) (runtime.Object, error) {
	return &autoscalingv1.Scale{}, nil
}
