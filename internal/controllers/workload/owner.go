// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OwnerOf returns the object of a kind that controls a child. get reads it by name from the cache. Its UID must match the owner reference:
// another object of the same name is not the owner.
func OwnerOf[T metav1.Object](child metav1.Object, kind string, get func(name string) (T, error)) (owner T, ok bool) {
	ref := metav1.GetControllerOfNoCopy(child)
	if ref == nil || ref.Kind != kind {
		return owner, false
	}
	o, err := get(ref.Name)
	if err != nil || o.GetUID() != ref.UID {
		return owner, false
	}
	return o, true
}
