// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOwnersTwice: an owner reference that is there twice is removed with a warning, and one that differs in anything is kept. Many of one
// UID are no more work than others.
func TestOwnersTwice(t *testing.T) {
	one := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "u"}
	controller, no, blocks := one, one, one
	controller.Controller, no.Controller, blocks.BlockOwnerDeletion = new(true), new(false), new(true)
	refs := []metav1.OwnerReference{one, controller, one, no, blocks, {UID: "v"}, controller}
	for i := range 40_000 {
		refs = append(refs, metav1.OwnerReference{UID: "u", Name: fmt.Sprint(i)})
	}
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{OwnerReferences: slices.Clone(refs)}}
	header := http.Header{}
	(&req{warn: &warnings{header: header}}).dedupOwners(obj, false)
	if got := obj.OwnerReferences; len(got) != len(refs)-2 || !slices.Equal([]metav1.OwnerReference{one, controller, no, blocks}, got[:4]) {
		t.Errorf("%d of %d are left: %v", len(got), len(refs), got[:4])
	}
	if said := header.Values("Warning"); len(said) != 1 || !strings.Contains(said[0], "duplicate UID(s) observed: u, u") {
		t.Errorf("said %q", said)
	}
}
