// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// scaleKind is what the scale subresource of every kind speaks.
var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// updateScale records a write through scale. It happens in the terms of the Scale: the owners of the parent's replicas become owners of the Scale's,
// the write is recorded there, and the result is brought back to the parent.
func (m *Manager) updateScale(d *resource.Descriptor, version string, view *resource.View, live, obj resource.Object, manager string) error {
	f, err := m.scale()
	if err != nil {
		return err
	}
	paths := managedfields.ResourcePathMappings{}
	for _, v := range d.Versions {
		paths[schema.GroupVersion{Group: d.Group, Version: v.Name}.String()] = replicas(d, v.Name)
	}
	handler := managedfields.NewScaleHandler(live.GetManagedFields(), schema.GroupVersion{Group: d.Group, Version: version}, paths)
	begin := view.Get
	if view.Edit != nil {
		begin = view.Edit
	}
	before, err := begin(live)
	if err != nil {
		return fmt.Errorf("make scale: %w", err)
	}
	after, err := view.Get(obj)
	if err != nil {
		return fmt.Errorf("make scale: %w", err)
	}
	entries, err := handler.ToSubresource()
	if err != nil {
		return fmt.Errorf("read managed fields: %w", err)
	}
	before.SetManagedFields(entries)
	if _, err := f.Update(before, after, manager); err != nil {
		return err
	}
	if entries, err = handler.ToParent(after.GetManagedFields()); err != nil {
		return fmt.Errorf("write managed fields: %w", err)
	}
	obj.SetManagedFields(entries)
	return nil
}

// replicas is the path of the field that a kind's scale sets; nil: the version has no scale.
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

// newScale makes the field manager of Scale objects, whose shape client-go does not know either.
func newScale() (*managedfields.FieldManager, error) {
	const prefix = "io.k8s.api.autoscaling.v1."
	all := models(openapi.GetOpenAPIDefinitions, metaPrefix, prefix)
	if s := all[prefix+"Scale"]; s != nil {
		s.AddExtension("x-kubernetes-group-version-kind", []any{map[string]any{"group": scaleKind.Group, "version": scaleKind.Version, "kind": scaleKind.Kind}})
	}
	c, err := managedfields.NewTypeConverter(all, false)
	if err != nil {
		return nil, fmt.Errorf("read schema of scale: %w", err)
	}
	f, err := managedfields.NewDefaultFieldManager(c, scaleConverter{}, scaleConverter{}, scaleConverter{}, scaleKind, scaleKind.GroupVersion(), "scale", nil)
	if err != nil {
		return nil, fmt.Errorf("make field manager of scale: %w", err)
	}
	return f, nil
}

// scaleConverter knows one kind in one version.
type scaleConverter struct{}

// ConvertToVersion gives a Scale its kind.
func (scaleConverter) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
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

// Default has nothing to fill in.
func (scaleConverter) Default(runtime.Object) {}

// New returns an empty Scale.
func (scaleConverter) New(schema.GroupVersionKind) (runtime.Object, error) {
	return &autoscalingv1.Scale{}, nil
}
