// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is an API object with metadata: a pointer to a k8s.io/api struct for built-in kinds, an
// *unstructured.Unstructured for kinds from CRDs.
//
// Every kind has one hub form: the Go type of its storage version. Strategies, columns and selectors see hub objects
// only; [Version] converts at the edge.
type Object interface {
	runtime.Object
	metav1.Object
}
