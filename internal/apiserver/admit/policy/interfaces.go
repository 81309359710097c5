// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/resource"
)

// interfaces are the kind of an object that a JSON patch changes, as the library that applies it wants to know it; and the
// built-in kinds that a patch may make of it, which is refused only when it is to be that kind again.
type interfaces struct {
	v     *matching.Versioned
	q     *matching.Request
	kinds func() []*resource.Descriptor
}

var (
	_ admission.ObjectInterfaces = interfaces{}
	_ runtime.ObjectCreater      = interfaces{}
	_ runtime.ObjectTyper        = interfaces{}
)

// GetObjectCreater returns i.
func (i interfaces) GetObjectCreater() runtime.ObjectCreater { return i }

// GetObjectTyper returns i.
func (i interfaces) GetObjectTyper() runtime.ObjectTyper { return i }

// GetObjectDefaulter is not asked for: what is left out is filled in afterwards.
func (interfaces) GetObjectDefaulter() runtime.ObjectDefaulter { return nil }

// GetObjectConvertor is not asked for: nothing is converted meanwhile.
func (interfaces) GetObjectConvertor() runtime.ObjectConvertor { return nil }

// GetEquivalentResourceMapper is not asked for: matching is over.
func (interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper { return nil }

// New returns an empty object of the kind, or of another built-in one.
func (i interfaces) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk == i.v.Kind {
		return i.q.Empty(i.v.Object), nil
	}
	for _, d := range i.kinds() {
		if v := d.Version(gvk.Version); d.Group == gvk.Group && d.Kind == gvk.Kind && v != nil && v.New != nil {
			if obj := v.New(); !unstructuredObject(obj) {
				return obj, nil
			}
		}
	}
	return nil, runtime.NewNotRegisteredErrForKind("pkg/runtime/scheme.go:111", gvk)
}

func unstructuredObject(obj runtime.Object) bool {
	_, is := obj.(*unstructured.Unstructured)
	return is
}

// sameKind reports whether a mutation left the object what it was. The error is that it did not.
func sameKind(v *matching.Versioned, obj runtime.Object) error {
	if reflect.TypeOf(obj) == reflect.TypeOf(v.Object) || unstructuredObject(obj) || unstructuredObject(v.Object) {
		return nil
	}
	was, is := v.Kind, reflect.TypeOf(obj).Elem().Name()
	group, _, _ := strings.Cut(cmp.Or(was.Group, "core"), ".")
	version := obj.GetObjectKind().GroupVersionKind().Version
	// upstream's words
	return fmt.Errorf("failed to convert object: converting (%s.%s) to (%s.%s): unknown conversion", version, is, group, was.Kind)
}

// ObjectKinds is the kind.
func (i interfaces) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok && u.GetKind() != "" {
		return []schema.GroupVersionKind{u.GroupVersionKind()}, false, nil
	}
	return []schema.GroupVersionKind{i.v.Kind}, false, nil
}

// Recognizes reports whether it is the kind.
func (i interfaces) Recognizes(gvk schema.GroupVersionKind) bool { return gvk == i.v.Kind }
