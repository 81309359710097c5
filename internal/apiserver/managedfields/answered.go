// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/mortise-dev/mortise/resource"
)

// Answered records the fields that a client set in an object which the server returns but does not store, such as a
// TokenRequest. Its parent's entries do not contain these fields. empty makes an empty object.
func (m *Manager) Answered(gvk schema.GroupVersionKind, subresource string, obj resource.Object, empty func() resource.Object,
	manager string) resource.Object {
	c := oneKind{gvk, empty}
	f, err := managedfields.NewDefaultFieldManager(managedfields.NewDeducedTypeConverter(), c, c, c, gvk, gvk.GroupVersion(), subresource, nil)
	if err == nil {
		_, err = f.Update(empty(), obj, manager)
	}
	if err != nil {
		m.log.Debug("Could not update managed fields", "kind", gvk.Kind, "name", obj.GetName(), "error", err)
		obj.SetManagedFields(nil)
	}
	return obj
}

// oneKind is the object converter for one kind in one version.
type oneKind struct {
	gvk   schema.GroupVersionKind
	empty func() resource.Object
}

// ConvertToVersion gives an object its kind.
func (c oneKind) ConvertToVersion(in runtime.Object, _ runtime.GroupVersioner) (runtime.Object, error) {
	o, ok := in.(resource.Object)
	if !ok {
		return nil, runtime.NewNotRegisteredErrForKind("managed fields", in.GetObjectKind().GroupVersionKind())
	}
	return withKind(o, c.gvk), nil
}

// Convert is not used by field managers.
func (oneKind) Convert(in, _, _ any) error { return fmt.Errorf("convert %T: unsupported", in) }

// ConvertFieldLabel is not used by field managers.
func (oneKind) ConvertFieldLabel(_ schema.GroupVersionKind, label, _ string) (string, string, error) {
	return "", "", fmt.Errorf("convert field label %q: unsupported", label)
}

// Default does nothing: defaults were applied when the object was decoded.
func (oneKind) Default(runtime.Object) {}

// New returns an empty object.
func (c oneKind) New(schema.GroupVersionKind) (runtime.Object, error) { return c.empty(), nil }
