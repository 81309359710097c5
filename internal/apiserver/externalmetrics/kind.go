// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import (
	_ "embed"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	certutil "k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

//go:embed definition.yaml
var definition []byte

// Kind describes ExternalMetricsRoute. Its schema validates what a schema can express; [Validate] checks the rest.
func Kind() (*resource.Descriptor, error) {
	d, err := crd.BuiltIn(definition, Validate)
	if err != nil {
		return nil, err
	}
	d.Hub().Columns = columns{d.Hub().Columns}
	return d, nil
}

// read converts an object of the kind to its Go type.
func read(obj resource.Object) (*v1alpha1.ExternalMetricsRoute, error) {
	return crd.As[v1alpha1.ExternalMetricsRoute](obj)
}

// Validate checks patterns, names and certificates.
func Validate(r *v1alpha1.ExternalMetricsRoute) field.ErrorList {
	path, spec := field.NewPath("spec"), &r.Spec
	var errs field.ErrorList
	if len(spec.Metrics) == 0 && len(spec.Namespaces) == 0 {
		errs = append(errs, field.Required(path, "must have metrics or namespaces"))
	}
	for i, p := range spec.Metrics {
		at := path.Child("metrics").Index(i)
		if p == "" {
			errs = append(errs, field.Required(at, ""))
		} else if strings.ContainsFunc(p, func(c rune) bool { return c <= ' ' || c == '/' || c == '%' || c == 0x7f }) {
			errs = append(errs, field.Invalid(at, p, "must not contain '/', '%' or spaces"))
		}
	}
	for i, p := range spec.Namespaces {
		at := path.Child("namespaces").Index(i)
		if p == "" {
			errs = append(errs, field.Required(at, ""))
		} else if msgs := validation.IsDNS1123Label(strings.ReplaceAll(p, "*", "a")); len(msgs) > 0 {
			errs = append(errs, field.Invalid(at, p, "must be the name of a namespace, in which '*' stands for any characters"))
		}
	}
	service := path.Child("service")
	for _, msg := range validation.IsDNS1123Label(spec.Service.Namespace) {
		errs = append(errs, field.Invalid(service.Child("namespace"), spec.Service.Namespace, msg))
	}
	for _, msg := range validation.IsDNS1123Label(spec.Service.Name) {
		errs = append(errs, field.Invalid(service.Child("name"), spec.Service.Name, msg))
	}
	if len(spec.CABundle) == 0 {
		return errs
	}
	if spec.InsecureSkipTLSVerify {
		errs = append(errs, field.Invalid(path.Child("insecureSkipTLSVerify"), true, "may not be true if caBundle is present"))
	}
	if _, err := certutil.ParseCertsPEM(spec.CABundle); err != nil {
		errs = append(errs, field.Invalid(path.Child("caBundle"), field.OmitValueType{}, "must be PEM certificates: "+err.Error()))
	}
	return errs
}
