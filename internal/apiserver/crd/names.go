// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/util/webhook"
)

// taken are the names that the other definitions of a group have been given.
type taken struct {
	resources map[string]bool // plural, singular, short
	kinds     map[string]bool // kind and list kind
}

func (t *taken) add(n v1.CustomResourceDefinitionNames) {
	for _, name := range append([]string{n.Plural, n.Singular}, n.ShortNames...) {
		t.resources[name] = true
	}
	t.kinds[n.Kind], t.kinds[n.ListKind] = true, true
}

// accept gives a definition its names and, with them, the conditions NamesAccepted and Established. A name that another
// definition has is refused, and the definition keeps the one it had. The result is a new status; def is not changed.
//
// What others wrote into the status stays as it is while the definition has all the names that it wants.
func accept(def *v1.CustomResourceDefinition, others taken, now time.Time) v1.CustomResourceDefinitionStatus {
	out := withStatus(def, *def.Status.DeepCopy())
	status := &out.Status
	if approval := approval(def); approval != nil {
		setCondition(status, *approval, now)
	}
	if !apiequality.Semantic.DeepEqual(def.Spec.Names, def.Status.AcceptedNames) {
		got, named := others.give(def)
		if !apiequality.Semantic.DeepEqual(got, def.Status.AcceptedNames) ||
			!apihelpers.IsCRDConditionEquivalent(&named, apihelpers.FindCRDCondition(def, v1.NamesAccepted)) {
			status.AcceptedNames = got
			setCondition(status, named, now)
			if apihelpers.FindCRDCondition(out, v1.Established) == nil {
				setCondition(status, v1.CustomResourceDefinitionCondition{
					Type: v1.Established, Status: v1.ConditionFalse, Reason: "NotAccepted", Message: "not all names are accepted",
				}, now)
			}
		}
	}
	if apihelpers.IsCRDConditionTrue(out, v1.NamesAccepted) && !apihelpers.IsCRDConditionTrue(out, v1.Established) {
		setCondition(status, establish(def), now)
	}
	return *status
}

// establish is the condition of a definition that has its names.
func establish(def *v1.CustomResourceDefinition) v1.CustomResourceDefinitionCondition {
	if c := def.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil &&
		len(webhook.ValidateCABundle(field.NewPath(""), c.Webhook.ClientConfig.CABundle)) > 0 {
		return v1.CustomResourceDefinitionCondition{
			Type: v1.Established, Status: v1.ConditionFalse, Reason: "InvalidCABundle", Message: "The conversion webhook CABundle is invalid",
		}
	}
	return v1.CustomResourceDefinitionCondition{
		Type: v1.Established, Status: v1.ConditionTrue, Reason: "InitialNamesAccepted", Message: "the initial names have been accepted",
	}
}

// give returns the names that a definition gets, and the condition NamesAccepted.
func (t taken) give(def *v1.CustomResourceDefinition) (v1.CustomResourceDefinitionNames, v1.CustomResourceDefinitionCondition) {
	want, have := def.Spec.Names, def.Status.AcceptedNames
	got := *have.DeepCopy()
	named := v1.CustomResourceDefinitionCondition{
		Type: v1.NamesAccepted, Status: v1.ConditionTrue, Reason: "NoConflicts", Message: "no conflicts found",
	}
	give := func(want, have string, used map[string]bool, reason string, into *string) {
		if err := free(want, have, used); err != nil {
			named.Status, named.Reason, named.Message = v1.ConditionFalse, reason, err.Error()
			return
		}
		*into = want
	}
	give(want.Plural, have.Plural, t.resources, "PluralConflict", &got.Plural)
	give(want.Singular, have.Singular, t.resources, "SingularConflict", &got.Singular)
	var errs []error
	for _, short := range want.ShortNames {
		if !slices.Contains(have.ShortNames, short) {
			errs = append(errs, free(short, "", t.resources))
		}
	}
	if err := utilerrors.NewAggregate(errs); err != nil {
		named.Status, named.Reason, named.Message = v1.ConditionFalse, "ShortNamesConflict", err.Error()
	} else {
		got.ShortNames = slices.Clone(want.ShortNames)
	}
	give(want.Kind, have.Kind, t.kinds, "KindConflict", &got.Kind)
	give(want.ListKind, have.ListKind, t.kinds, "ListKindConflict", &got.ListKind)
	got.Categories = slices.Clone(want.Categories)
	return got, named
}

func free(want, have string, used map[string]bool) error {
	if want == have || !used[want] {
		return nil
	}
	return fmt.Errorf("%q is already in use", want)
}

// approval reports whether a definition in a group of the Kubernetes community may be there; nil for all other groups.
func approval(def *v1.CustomResourceDefinition) *v1.CustomResourceDefinitionCondition {
	if !apihelpers.IsProtectedCommunityGroup(def.Spec.Group) {
		return nil
	}
	c := &v1.CustomResourceDefinitionCondition{Type: v1.KubernetesAPIApprovalPolicyConformant, Status: v1.ConditionFalse}
	state, text := apihelpers.GetAPIApprovalState(def.Annotations)
	c.Message = text
	switch state {
	case apihelpers.APIApprovalInvalid:
		c.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	case apihelpers.APIApproved:
		c.Status, c.Reason = v1.ConditionTrue, "ApprovedAnnotation"
	default:
		c.Status, c.Reason = v1.ConditionUnknown, "UnknownAnnotation"
	}
	return c
}

func setCondition(s *v1.CustomResourceDefinitionStatus, c v1.CustomResourceDefinitionCondition, now time.Time) {
	c.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
	for i := range s.Conditions {
		old := &s.Conditions[i]
		if old.Type == c.Type {
			if old.Status == c.Status && !old.LastTransitionTime.IsZero() {
				c.LastTransitionTime = old.LastTransitionTime
			}
			*old = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

// sameStatus reports whether there is nothing to write.
func sameStatus(a, b v1.CustomResourceDefinitionStatus) bool {
	return apiequality.Semantic.DeepEqual(a, b)
}
