// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// own records that the server manages the status' fields, and wrote some of them now, as kube-apiserver does.
func own(d *v1.CustomResourceDefinition, now time.Time) error {
	none := map[string]any{}
	names, conditions := map[string]any{}, map[string]any{}
	n := d.Status.AcceptedNames
	for key, set := range map[string]bool{
		"f:categories": len(n.Categories) > 0, "f:kind": n.Kind != "", "f:listKind": n.ListKind != "", "f:plural": n.Plural != "",
		"f:shortNames": len(n.ShortNames) > 0, "f:singular": n.Singular != "",
	} {
		if set {
			names[key] = none
		}
	}
	for _, c := range d.Status.Conditions {
		switch {
		case c.Type == v1.Terminating && c.Reason != "InstanceDeletionPending":
			// It was the delete request that added the condition; of that the server changes parts.
			fields := map[string]any{"f:message": none, "f:reason": none}
			if c.Status == v1.ConditionFalse {
				fields["f:status"] = none
			}
			conditions[`k:{"type":"Terminating"}`] = fields
			continue
		case !ours(c.Type):
			continue
		}
		conditions[fmt.Sprintf(`k:{"type":%q}`, c.Type)] = map[string]any{
			".": none, "f:lastTransitionTime": none, "f:message": none, "f:reason": none, "f:status": none, "f:type": none,
		}
	}
	raw, err := json.Marshal(map[string]any{"f:status": map[string]any{"f:acceptedNames": names, "f:conditions": conditions}})
	if err != nil {
		return fmt.Errorf("encode managed fields: %w", err)
	}
	at := metav1.NewTime(now).Rfc3339Copy()
	entry := metav1.ManagedFieldsEntry{
		Manager: "kube-apiserver", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: v1.SchemeGroupVersion.String(),
		Time: &at, FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: raw}, Subresource: "status",
	}
	kept := slices.DeleteFunc(slices.Clone(d.ManagedFields), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == entry.Manager && e.Subresource == entry.Subresource && e.Operation == entry.Operation
	})
	d.ManagedFields = append(kept, entry)
	slices.SortStableFunc(d.ManagedFields, func(a, b metav1.ManagedFieldsEntry) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(seconds(a), seconds(b)),
			cmp.Compare(a.Manager, b.Manager), cmp.Compare(a.APIVersion, b.APIVersion), cmp.Compare(a.Subresource, b.Subresource))
	})
	return nil
}

// ours reports whether the server writes a condition as a whole.
func ours(t v1.CustomResourceDefinitionConditionType) bool {
	return t == v1.NamesAccepted || t == v1.Established || t == v1.KubernetesAPIApprovalPolicyConformant
}

func seconds(e metav1.ManagedFieldsEntry) int64 {
	if e.Time == nil {
		return 0
	}
	return e.Time.Unix()
}
