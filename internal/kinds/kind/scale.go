// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kind

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Scale is the scale subresource of a kind. get reads what a scale contains, replicas points to what it sets.
func Scale[P resource.Object](group, plural string, get func(obj P) (spec, status int32, selector string, err error),
	replicas func(obj P) **int32) resource.Subresource {
	check := upstream.Scale()
	return resource.Subresource{
		Name:             "scale",
		GroupVersionKind: autoscalingv1.SchemeGroupVersion.WithKind("Scale"),
		Verbs:            []string{"get", "patch", "update"},
		View: &resource.View{
			New: func() resource.Object { return &autoscalingv1.Scale{} },
			Get: func(parent resource.Object) (resource.Object, error) {
				spec, status, selector, err := get(as[P](parent))
				if err != nil {
					return nil, apierrors.NewBadRequest(err.Error())
				}
				return &autoscalingv1.Scale{
					TypeMeta: metav1.TypeMeta{APIVersion: "autoscaling/v1", Kind: "Scale"},
					ObjectMeta: metav1.ObjectMeta{
						Name:              parent.GetName(),
						Namespace:         parent.GetNamespace(),
						UID:               parent.GetUID(),
						ResourceVersion:   parent.GetResourceVersion(),
						CreationTimestamp: parent.GetCreationTimestamp(),
					},
					Spec:   autoscalingv1.ScaleSpec{Replicas: spec},
					Status: autoscalingv1.ScaleStatus{Replicas: status, Selector: selector},
				}, nil
			},
			Set: func(view, parent resource.Object) error {
				scale, ok := view.(*autoscalingv1.Scale)
				if !ok {
					return apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", view))
				}
				if scale.UID != "" && scale.UID != parent.GetUID() {
					return apierrors.NewConflict(schema.GroupResource{Group: group, Resource: plural + "/scale"}, parent.GetName(),
						fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, parent.GetUID()))
				}
				n := scale.Spec.Replicas
				*replicas(as[P](parent)) = &n
				parent.SetResourceVersion(scale.ResourceVersion)
				return nil
			},
			Strategy: resource.Strategy{
				Validate: func(ctx context.Context, obj resource.Object) field.ErrorList { return check(ctx, obj, obj) },
				ValidateUpdate: func(ctx context.Context, obj, old resource.Object) field.ErrorList {
					return check(ctx, obj, old)
				},
			},
		},
	}
}

// Count returns a number of replicas, 0 for nil.
func Count(n *int32) int32 {
	if n == nil {
		return 0
	}
	return *n
}

// Selector returns a label selector as text.
func Selector(s *metav1.LabelSelector) (string, error) {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}
