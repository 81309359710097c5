// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	_ "embed"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

//go:embed definition.yaml
var definition []byte

// Kind describes InitializerConfiguration. Its schema validates what a schema can express; Validate checks the rest.
func Kind() (*resource.Descriptor, error) {
	d, err := crd.BuiltIn(definition, Validate)
	if err != nil {
		return nil, err
	}
	d.Hub().Columns = columns{d.Hub().Columns}
	return d, nil
}

// read converts an object of the kind to its Go type.
func read(obj resource.Object) (*v1alpha1.InitializerConfiguration, error) {
	return crd.As[v1alpha1.InitializerConfiguration](obj)
}

// Validate checks names, rules and selectors.
func Validate(c *v1alpha1.InitializerConfiguration) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("initializers")
	for i := range c.Initializers {
		in, at := &c.Initializers[i], path.Index(i)
		errs = append(errs, validation.IsFullyQualifiedName(at.Child("name"), in.Name)...)
		for j := range in.Rules {
			errs = append(errs, validateRule(&in.Rules[j], at.Child("rules").Index(j))...)
		}
		errs = append(errs, validateSelector(in.NamespaceSelector, at.Child("namespaceSelector"))...)
		errs = append(errs, validateSelector(in.ObjectSelector, at.Child("objectSelector"))...)
	}
	return errs
}

func validateSelector(s *metav1.LabelSelector, at *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	return metav1validation.ValidateLabelSelector(s, metav1validation.LabelSelectorValidationOptions{}, at)
}

func validateRule(r *v1alpha1.Rule, at *field.Path) field.ErrorList {
	errs := validateNames(r.APIGroups, at.Child("apiGroups"), "API groups", true)
	errs = append(errs, validateNames(r.APIVersions, at.Child("apiVersions"), "API versions", false)...)
	errs = append(errs, validateNames(r.Resources, at.Child("resources"), "resources", false)...)
	for i, name := range r.Resources {
		if strings.Contains(name, "/") {
			errs = append(errs, field.Invalid(at.Child("resources").Index(i), name, "must not specify subresources"))
		}
	}
	for i, g := range r.APIGroups {
		if slices.Contains(exempt, g) {
			errs = append(errs, field.Invalid(at.Child("apiGroups").Index(i), g,
				"objects of this group configure the server itself and cannot wait for initializers"))
		}
	}
	return errs
}

// validateNames checks one list of a rule. The name of the core group is empty.
func validateNames(names []string, at *field.Path, what string, empty bool) field.ErrorList {
	if len(names) == 0 {
		return field.ErrorList{field.Required(at, "")}
	}
	var errs field.ErrorList
	for i, name := range names {
		if name == "" && !empty {
			errs = append(errs, field.Required(at.Index(i), ""))
		}
	}
	if len(names) > 1 && slices.Contains(names, "*") {
		errs = append(errs, field.Invalid(at, names, "if '*' is present, must not specify other "+what))
	}
	return errs
}

// exempt lists the groups whose objects configure the server. Stored objects of these groups are in force, so they are
// never hidden.
var exempt = []string{
	v1alpha1.Group, "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io",
	"flowcontrol.apiserver.k8s.io", "rbac.authorization.k8s.io",
}
