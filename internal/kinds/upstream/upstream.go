// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package upstream is the only package that imports k8s.io/kubernetes: its defaults, its field validation, its columns and its conversions,
// all on the versioned types of k8s.io/api. The unversioned types behind them never leave the package.
//
// [Default] sets defaults, [Convert] converts between served versions, [Columns] returns table columns, and a function named after each
// kind returns its [Checks]. All are safe for concurrent use and have no state: the scheme is filled once, on first use, and only read
// afterwards.
package upstream

import (
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	admissionregistrationv1 "k8s.io/kubernetes/pkg/apis/admissionregistration/v1"
	admissionregistrationv1alpha1 "k8s.io/kubernetes/pkg/apis/admissionregistration/v1alpha1"
	admissionregistrationv1beta1 "k8s.io/kubernetes/pkg/apis/admissionregistration/v1beta1"
	"k8s.io/kubernetes/pkg/apis/apiserverinternal"
	apiserverinternalv1alpha1 "k8s.io/kubernetes/pkg/apis/apiserverinternal/v1alpha1"
	certificatesv1beta1 "k8s.io/kubernetes/pkg/apis/certificates/v1beta1"
	coordinationv1alpha2 "k8s.io/kubernetes/pkg/apis/coordination/v1alpha2"
	coordinationv1beta1 "k8s.io/kubernetes/pkg/apis/coordination/v1beta1"
	"k8s.io/kubernetes/pkg/apis/flowcontrol"
	flowcontrolv1 "k8s.io/kubernetes/pkg/apis/flowcontrol/v1"
	"k8s.io/kubernetes/pkg/apis/networking"
	networkingv1 "k8s.io/kubernetes/pkg/apis/networking/v1"
	"k8s.io/kubernetes/pkg/apis/node"
	nodev1 "k8s.io/kubernetes/pkg/apis/node/v1"
	resourcev1alpha3 "k8s.io/kubernetes/pkg/apis/resource/v1alpha3"
	resourcev1beta1 "k8s.io/kubernetes/pkg/apis/resource/v1beta1"
	resourcev1beta2 "k8s.io/kubernetes/pkg/apis/resource/v1beta2"
	"k8s.io/kubernetes/pkg/apis/storagemigration"
	storagemigrationv1 "k8s.io/kubernetes/pkg/apis/storagemigration/v1"
	storagemigrationv1beta1 "k8s.io/kubernetes/pkg/apis/storagemigration/v1beta1"
)

// scheme is upstream's scheme, which the column handlers fill with most groups when the program starts, and the groups that they leave out.
var scheme = sync.OnceValue(func() *runtime.Scheme {
	s := legacyscheme.Scheme
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistration.AddToScheme, admissionregistrationv1.AddToScheme, admissionregistrationv1beta1.AddToScheme,
		admissionregistrationv1alpha1.AddToScheme,
		apiserverinternal.AddToScheme, apiserverinternalv1alpha1.AddToScheme,
		certificatesv1beta1.AddToScheme, coordinationv1beta1.AddToScheme, coordinationv1alpha2.AddToScheme,
		resourcev1beta2.AddToScheme, resourcev1beta1.AddToScheme, resourcev1alpha3.AddToScheme,
		apiregistration.AddToScheme, apiregistrationv1.AddToScheme,
		flowcontrol.AddToScheme, flowcontrolv1.AddToScheme,
		networking.AddToScheme, networkingv1.AddToScheme,
		node.AddToScheme, nodev1.AddToScheme,
		storagemigration.AddToScheme, storagemigrationv1.AddToScheme, storagemigrationv1beta1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(fmt.Sprintf("upstream: fill scheme: %v", err))
		}
	}
	return s
})

// Default sets the defaults of a versioned object.
func Default(obj runtime.Object) { scheme().Default(obj) }

// FieldLabel converts the label and value of a field selector on a kind to the hub's, or refuses the label as upstream does.
func FieldLabel(gvk schema.GroupVersionKind, label, value string) (string, string, error) {
	return scheme().ConvertFieldLabel(gvk, label, value)
}

// convertThrough converts in to out, of another version of the same kind, through the unversioned form I.
func convertThrough[I any](in, out runtime.Object) error {
	internal := new(I)
	if err := scheme().Convert(in, internal, nil); err != nil {
		return fmt.Errorf("convert %T: %w", in, err)
	}
	if err := scheme().Convert(internal, out, nil); err != nil {
		return fmt.Errorf("convert to %T: %w", out, err)
	}
	return nil
}

// Convert converts obj to out, of another version of the kind, through the kind's unversioned form.
func Convert(obj, out runtime.Object, kind schema.GroupKind) error {
	internal, err := scheme().New(kind.WithVersion(runtime.APIVersionInternal))
	if err != nil {
		return fmt.Errorf("convert %T: %w", obj, err)
	}
	if err := scheme().Convert(obj, internal, nil); err != nil {
		return fmt.Errorf("convert %T: %w", obj, err)
	}
	if err := scheme().Convert(internal, out, nil); err != nil {
		return fmt.Errorf("convert to %T: %w", out, err)
	}
	return nil
}

// internal converts a versioned object to its unversioned form, to which P points. The two may share memory, so the result is read-only.
func internal[P any](obj runtime.Object) P { return unversioned(obj, reflect.TypeFor[P]()).(P) }

func unversioned(obj runtime.Object, pointer reflect.Type) any {
	in := reflect.New(pointer.Elem()).Interface()
	if err := scheme().Convert(obj, in, nil); err != nil {
		panic(fmt.Sprintf("upstream: convert %T: %v", obj, err))
	}
	return in
}
