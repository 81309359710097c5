// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKeepTimes: who writes what is there changes nothing, not even a time; who changes a field that was its own already has
// written it now.
func TestKeepTimes(t *testing.T) {
	entry := func(manager string, at int64) metav1.ManagedFieldsEntry {
		when := metav1.Unix(at, 0)
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: "Apply", APIVersion: "v1", Time: &when, FieldsV1: &metav1.FieldsV1{Raw: []byte(`{}`)},
		}
	}
	object := func(value string, entries ...metav1.ManagedFieldsEntry) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", ManagedFields: entries}, Data: map[string]string{"a": value}}
	}
	old := object("1", entry("first", 1), entry("second", 2))
	old.ResourceVersion = "7"
	for name, c := range map[string]struct {
		obj   *corev1.ConfigMap
		first int
		at    int64
	}{
		"the same":            {object("1", entry("second", 2), entry("first", 3)), 0, 1},
		"another value":       {object("2", entry("second", 2), entry("first", 3)), 1, 3},
		"an entry went":       {object("1", entry("first", 3)), 0, 3},
		"an entry is another": {object("1", entry("first", 3), entry("third", 2)), 0, 3},
	} {
		keepTimes(c.obj, old)
		if e := c.obj.ManagedFields[c.first]; e.Manager != "first" || !e.Time.Time.Equal(time.Unix(c.at, 0)) || c.obj.ResourceVersion != "" {
			t.Errorf("%s: %v, version %q", name, c.obj.ManagedFields, c.obj.ResourceVersion)
		}
	}
}
