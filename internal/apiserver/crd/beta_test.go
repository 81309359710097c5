// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"testing"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// TestStoredAsBeta: kube-apiserver stores definitions as v1beta1, with what all versions have in common beside them.
func TestStoredAsBeta(t *testing.T) {
	obj, err := definitionCodec{}.Decode([]byte(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1",
		"metadata":{"name":"widgets.example.com","uid":"u"},"spec":{"group":"example.com","version":"v1",
		"names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},"scope":"Namespaced",
		"validation":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}},"subresources":{"status":{}},
		"versions":[{"name":"v1","served":true,"storage":true}],"conversion":{"strategy":"None"},"preserveUnknownFields":false},
		"status":{"conditions":[{"type":"Established","status":"True"}],"storedVersions":["v1"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	d := obj.(*v1.CustomResourceDefinition)
	if len(d.Spec.Versions) != 1 || d.Spec.Versions[0].Schema == nil || d.Spec.Versions[0].Subresources == nil ||
		d.Spec.PreserveUnknownFields || d.UID != "u" || len(d.Status.Conditions) != 1 || d.Spec.Conversion.Strategy != v1.NoneConverter {
		t.Errorf("read %+v", d)
	}
}
