// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package objectversion orders versions of an object, for caches that hold what they wrote themselves until a watch has shown it.
package objectversion

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Less reports whether resource version a is older than b. It is false if they cannot be compared, as before the first write.
func Less(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// Older reports whether a is an older version than b, by their resourceVersions. It is false if they cannot be compared, as before the
// first write.
func Older(a, b metav1.Object) bool {
	return Less(a.GetResourceVersion(), b.GetResourceVersion())
}
