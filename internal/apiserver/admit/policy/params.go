// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/resource"
)

// paramKind is a served kind of parameters.
type paramKind struct {
	gvk        schema.GroupVersionKind
	descriptor *resource.Descriptor
}

// findParams returns the kind that a policy names; nil when it names none. The error is an error of the policy.
func findParams(h *admit.Host, k *admissionregistrationv1.ParamKind) (*paramKind, error) {
	if k == nil {
		return nil, nil
	}
	gv, err := schema.ParseGroupVersion(k.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("failed to parse paramKind APIVersion: %w", err) // upstream's words
	}
	gvk := gv.WithKind(k.Kind)
	for _, d := range h.Kinds() {
		if v := d.Version(gvk.Version); d.Group == gvk.Group && d.Kind == gvk.Kind && v != nil && !v.Unserved {
			return &paramKind{gvk, d}, nil
		}
	}
	return nil, fmt.Errorf("failed to find resource referenced by paramKind: '%v'", gvk) // upstream's words
}

// collect returns the parameters with which a binding evaluates its policy: a single nil if it has none.
func (k *paramKind) collect(ctx context.Context, b resource.Backend, ref *admissionregistrationv1.ParamRef,
	namespace string) ([]runtime.Object, error) {
	if k == nil || ref == nil {
		return []runtime.Object{nil}, nil
	}
	if !k.descriptor.Namespaced {
		if ref.Namespace != "" {
			return nil, errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`") // upstream's words
		}
		namespace = ""
	} else {
		if ref.Namespace != "" {
			namespace = ref.Namespace
		}
		if namespace == "" {
			return nil, errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources") // upstream's words
		}
	}
	var found []resource.Object
	switch {
	case ref.Name != "" && ref.Selector != nil:
		return nil, errors.New("paramRef.name and paramRef.selector are mutually exclusive") // upstream's words
	case ref.Name != "":
		obj, err := b.Get(ctx, k.descriptor.GroupResource(), namespace, ref.Name)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err == nil {
			found = append(found, obj)
		}
	case ref.Selector != nil:
		selector, err := metav1.LabelSelectorAsSelector(ref.Selector)
		if err != nil {
			return nil, err
		}
		all, err := b.List(ctx, k.descriptor.GroupResource(), namespace)
		if err != nil {
			return nil, err
		}
		for _, obj := range all {
			if selector.Matches(labels.Set(obj.GetLabels())) {
				found = append(found, obj)
			}
		}
		slices.SortFunc(found, func(a, b resource.Object) int { return strings.Compare(a.GetName(), b.GetName()) })
	default:
		return nil, errors.New("one of name or selector must be provided") // upstream's words
	}
	if len(found) == 0 && ref.ParameterNotFoundAction != nil && *ref.ParameterNotFoundAction == admissionregistrationv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction") // upstream's words
	}
	params := make([]runtime.Object, len(found))
	for i, obj := range found {
		p, err := matching.Convert(k.descriptor, k.gvk, obj)
		if err != nil {
			return nil, err
		}
		params[i] = p
	}
	return params, nil
}
