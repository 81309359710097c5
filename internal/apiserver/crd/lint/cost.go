// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// costs returns the estimated cost of each CEL rule from a tenth of the server's limit on, and the total cost of each
// version.
func costs(def *v1.CustomResourceDefinition) []Finding {
	var out []Finding
	for i, version := range def.Spec.Versions {
		if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
			continue
		}
		var internal apiextensions.JSONSchemaProps
		if err := v1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(version.Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			return append(out, Finding{Error, "", err.Error()})
		}
		w := &costing{env: environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())}
		path := field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema")
		w.walk(path, &internal, validation.RootCELContext(&internal))
		out = append(out, w.found...)
		if w.rules > 0 {
			out = append(out, Finding{Note, path.String(), fmt.Sprintf("%d CEL rules, estimated cost %d of %d (%s)",
				w.rules, w.total, uint64(validation.StaticEstimatedCRDCostLimit), percent(w.total, validation.StaticEstimatedCRDCostLimit))})
		}
	}
	return out
}

type costing struct {
	env   *environment.EnvSet
	rules int
	total uint64
	found []Finding
}

func (w *costing) walk(path *field.Path, s *apiextensions.JSONSchemaProps, c *validation.CELSchemaContext) {
	if s == nil || c == nil {
		return
	}
	if len(s.XValidations) > 0 {
		w.price(path, c)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		w.walk(path.Child("properties").Key(name), &p, c.ChildPropertyContext(&p, name))
	}
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		w.walk(path.Child("additionalProperties"), a.Schema, c.ChildAdditionalPropertiesContext(a.Schema))
	}
	if i := s.Items; i != nil && i.Schema != nil {
		w.walk(path.Child("items"), i.Schema, c.ChildItemsContext(i.Schema))
	}
}

// price estimates the rules of one schema node: the cost of one evaluation times the maximum number of such nodes.
func (w *costing) price(path *field.Path, c *validation.CELSchemaContext) {
	info, err := c.TypeInfo()
	if err != nil || info == nil {
		return // validation has reported it
	}
	results, err := cel.Compile(info.Schema, info.DeclType, celconfig.PerCallLimit, w.env, cel.StoredExpressionsEnvLoader())
	if err != nil {
		return
	}
	for i, r := range results {
		often := r.MaxCardinality
		if c.MaxCardinality != nil {
			often = *c.MaxCardinality
		}
		cost := times(r.MaxCost, often)
		w.rules++
		w.total = plus(w.total, plus(cost, r.MessageExpressionMaxCost))
		if cost >= validation.StaticEstimatedCostLimit/10 {
			w.found = append(w.found, Finding{Note, path.Child("x-kubernetes-validations").Index(i).Child("rule").String(),
				fmt.Sprintf("estimated cost %d of %d (%s)", cost, uint64(validation.StaticEstimatedCostLimit),
					percent(cost, validation.StaticEstimatedCostLimit))})
		}
	}
}

func percent(part, whole uint64) string {
	return fmt.Sprintf("%.3g %%", 100*float64(part)/float64(whole))
}

func times(a, b uint64) uint64 {
	if high, low := bits.Mul64(a, b); high == 0 {
		return low
	}
	return math.MaxUint64
}

func plus(a, b uint64) uint64 {
	if sum, carry := bits.Add64(a, b, 0); carry == 0 {
		return sum
	}
	return math.MaxUint64
}
