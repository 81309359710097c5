// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorization

import (
	"context"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/internal/selectors"
)

// TestSelectorTermsAreBounded asks about selectors with too many terms, as text and one by one: the authorizers see none of these, and
// the answer says so.
func TestSelectorTermsAreBounded(t *testing.T) {
	const many = selectors.MaxTerms + 1
	values := make([]string, many)
	for i := range values {
		values[i] = "v"
	}
	fieldTerms := make([]metav1.FieldSelectorRequirement, many)
	for i := range fieldTerms {
		fieldTerms[i] = metav1.FieldSelectorRequirement{Key: "metadata.name", Operator: metav1.FieldSelectorOpIn, Values: []string{"a"}}
	}
	labelTerms := []metav1.LabelSelectorRequirement{{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: values}}
	for name, c := range map[string]struct {
		about authorizationv1.ResourceAttributes
		want  string
	}{
		"labels as text": {authorizationv1.ResourceAttributes{LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "k in (" +
			strings.Join(values, ",") + ")"}}, "labelSelector ignored"},
		"labels": {authorizationv1.ResourceAttributes{LabelSelector: &authorizationv1.LabelSelectorAttributes{Requirements: labelTerms}},
			"labelSelector ignored"},
		"fields as text": {authorizationv1.ResourceAttributes{FieldSelector: &authorizationv1.FieldSelectorAttributes{
			RawSelector: strings.Repeat("metadata.name=a,", many)}}, "fieldSelector ignored"},
		"fields": {authorizationv1.ResourceAttributes{FieldSelector: &authorizationv1.FieldSelectorAttributes{Requirements: fieldTerms}},
			"fieldSelector ignored"},
	} {
		t.Run(name, func(t *testing.T) {
			f := Authorize(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
				if r, _ := a.GetLabelSelector(); len(r) > 0 {
					t.Errorf("the authorizer sees %d requirements of labels", len(r))
				}
				if r, _ := a.GetFieldSelector(); len(r) > 0 {
					t.Errorf("the authorizer sees %d requirements of fields", len(r))
				}
				return authorizer.DecisionNoOpinion, "", nil
			})
			s := f.answer(t.Context(), of(&user.DefaultInfo{Name: "jane"}, &c.about, nil))
			if s.Allowed || !strings.Contains(s.EvaluationError, c.want) {
				t.Errorf("answered %+v", s)
			}
		})
	}
}
