// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"fmt"
	"math"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/resource"
)

var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// scale is the subresource scale, which shows the fields with the numbers of replicas.
type scale struct {
	specPath               string
	spec, status, selector []string
	in                     *version // in which the fields are looked for; nil: in the hub
}

func newScale(s *v1.CustomResourceSubresourceScale, in *version) scale {
	out := scale{in: in, specPath: s.SpecReplicasPath, spec: splitPath(s.SpecReplicasPath), status: splitPath(s.StatusReplicasPath)}
	if s.LabelSelectorPath != nil && *s.LabelSelectorPath != "" {
		out.selector = splitPath(*s.LabelSelectorPath)
	}
	return out
}

func splitPath(p string) []string { return strings.Split(strings.TrimPrefix(p, "."), ".") }

func (s scale) view() *resource.View {
	return &resource.View{
		New: func() resource.Object { return &autoscalingv1.Scale{} },
		Get: func(parent resource.Object) (resource.Object, error) {
			return s.make(parent, func() (int64, error) {
				return 0, apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", s.specPath))
			})
		},
		Edit: func(parent resource.Object) (resource.Object, error) {
			return s.make(parent, func() (int64, error) { return unset, nil })
		},
		Written: func(parent resource.Object) (resource.Object, error) { // whose schema may have pruned what was written
			return s.make(parent, func() (int64, error) { return 0, nil })
		},
		Set: s.set,
	}
}

// unset stands for a missing number of replicas, until a write sets it.
const unset = math.MinInt32

// make makes the Scale; absent returns the replicas of an object without that field.
func (s scale) make(parent resource.Object, absent func() (int64, error)) (resource.Object, error) {
	u, err := s.versioned(parent)
	if err != nil {
		return nil, err
	}
	replicas, found, err := unstructured.NestedInt64(u.Object, s.spec...)
	if err != nil {
		return nil, err
	}
	if !found {
		if replicas, err = absent(); err != nil {
			return nil, err
		}
	}
	observed, _, err := unstructured.NestedInt64(u.Object, s.status...)
	if err != nil {
		return nil, err
	}
	out := &autoscalingv1.Scale{
		TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
		ObjectMeta: metav1.ObjectMeta{
			Name: u.GetName(), Namespace: u.GetNamespace(), UID: u.GetUID(),
			ResourceVersion: u.GetResourceVersion(), CreationTimestamp: u.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: int32(replicas)},
		Status: autoscalingv1.ScaleStatus{Replicas: int32(observed)},
	}
	if s.selector != nil {
		if out.Status.Selector, _, err = unstructured.NestedString(u.Object, s.selector...); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// versioned converts a parent to the version of the fields. The result may share memory with parent.
func (s scale) versioned(parent resource.Object) (*unstructured.Unstructured, error) {
	if s.in == nil {
		return parent.(*unstructured.Unstructured), nil
	}
	return s.in.k.in(context.Background(), s.in, parent)
}

func (s scale) set(view, parent resource.Object) error {
	v, hub := view.(*autoscalingv1.Scale), parent.(*unstructured.Unstructured)
	u, err := s.versioned(hub)
	if err != nil {
		return err
	}
	if u != hub { // it stays in the version until it is stored
		hub.Object = runtime.DeepCopyJSON(u.Object)
		u = hub
	}
	if v.Spec.Replicas == unset {
		return apierrors.NewBadRequest(fmt.Sprintf("the spec replicas field %q cannot be empty", s.specPath))
	}
	if err := unstructured.SetNestedField(u.Object, int64(v.Spec.Replicas), s.spec...); err != nil {
		return fmt.Errorf("set replicas: %w", err)
	}
	if v.ResourceVersion != "" {
		u.SetResourceVersion(v.ResourceVersion)
	}
	return nil
}
