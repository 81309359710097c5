// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
)

// interfaces are the one kind of an object that a JSON patch changes, as the library that applies it wants to know it.
type interfaces struct {
	v *matching.Versioned
	q *matching.Request
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

// New returns an empty object of the kind; there is no other.
func (i interfaces) New(gvk schema.GroupVersionKind) (runtime.Object, error) {
	if gvk != i.v.Kind {
		return nil, runtime.NewNotRegisteredErrForKind("pkg/runtime/scheme.go:111", gvk)
	}
	return i.q.Empty(i.v.Object), nil
}

// ObjectKinds is the kind.
func (i interfaces) ObjectKinds(obj runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok && u.GetKind() != "" {
		return []schema.GroupVersionKind{u.GroupVersionKind()}, false, nil
	}
	return []schema.GroupVersionKind{i.v.Kind}, false, nil
}

// Recognizes says whether it is the kind.
func (i interfaces) Recognizes(gvk schema.GroupVersionKind) bool { return gvk == i.v.Kind }
