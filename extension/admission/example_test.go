// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admission_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/resource"
)

// owners labels ConfigMaps with the user who creates them, and refuses those without data.
type owners struct{}

// Name is what --disable-admission-plugins and an AdmissionConfiguration call the plug-in.
func (owners) Name() string { return "Owners" }

// Mutate implements [admission.Mutator].
func (owners) Mutate(_ context.Context, _ resource.Backend, a *admission.Attributes) error {
	if m, ok := a.Object.(*corev1.ConfigMap); ok && a.Operation == admission.Create {
		metav1.SetMetaDataLabel(&m.ObjectMeta, "owner", a.User.GetName())
	}
	return nil
}

// Validate implements [admission.Validator].
func (owners) Validate(_ context.Context, _ resource.Backend, a *admission.Attributes) error {
	if m, ok := a.Object.(*corev1.ConfigMap); ok && len(m.Data) == 0 {
		return apierrors.NewForbidden(a.Descriptor.GroupResource(), a.Name, errors.New("it has no data"))
	}
	return nil
}

// A plug-in that is both a mutator and a validator, as a test of the plug-in calls it. ExampleExtensions_admission of package embed runs
// one in a cluster.
func Example() {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	a := &admission.Attributes{
		Operation: admission.Create, Descriptor: &resource.Descriptor{Resource: "configmaps", Kind: "ConfigMap"}, Version: "v1", Name: "a",
		Object: configMap, User: &user.DefaultInfo{Name: "ali"},
	}
	var plugin interface {
		admission.Mutator
		admission.Validator
	} = owners{}
	err := plugin.Mutate(context.Background(), nil, a)
	fmt.Println(configMap.Labels, err)
	fmt.Println(plugin.Validate(context.Background(), nil, a))
	// Output:
	// map[owner:ali] <nil>
	// configmaps "a" is forbidden: it has no data
}
