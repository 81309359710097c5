// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is version v1alpha1 of extension.mortise.dev, Mortise's own API group.
//
// [ExternalMetricsRoute] sends requests for some external metrics to a server of their own. [InitializerConfiguration] names
// the controllers that initialize objects of given resources before other clients see them. The annotation
// [InitializersAnnotation], which every client preserves, lists an object's pending initializers; [Initializers] decodes it.
// A controller that initializes objects needs three functions: [SeeUninitialized] shows it uninitialized objects, [Finish]
// removes it from an object's list, [Reject] rejects an object. They change the given object and nothing else; storing it
// is an ordinary update.
package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The names of the group, and of its kind for initializers.
const (
	Group    = "extension.mortise.dev"
	Version  = "v1alpha1"
	Kind     = "InitializerConfiguration"
	Resource = "initializerconfigurations"
)

// InitializerConfiguration lists initializers that objects must pass. Those of all configurations apply, in the order of
// the configurations' names and of the list in each.
type InitializerConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Initializers []Initializer `json:"initializers,omitempty"`
}

// Initializer is one controller with the objects that it initializes.
type Initializer struct {
	// Name is a domain name of at least three segments, such as proxy.example.com.
	Name string `json:"name"`
	// Rules are the resources; an object is initialised if one of them matches.
	Rules []Rule `json:"rules,omitempty"`
	// NamespaceSelector and ObjectSelector narrow the rules to objects in some namespaces, and to objects with some labels.
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	ObjectSelector    *metav1.LabelSelector `json:"objectSelector,omitempty"`
	// DeadlineSeconds is how long one object may wait for this initializer; 30 if it is not set.
	DeadlineSeconds int64 `json:"deadlineSeconds,omitempty"`
	// FailurePolicy is applied to an object whose deadline has expired; Fail if it is not set.
	FailurePolicy FailurePolicy `json:"failurePolicy,omitempty"`
}

// Rule names resources; "*" is all groups, versions or resources.
type Rule struct {
	APIGroups   []string `json:"apiGroups,omitempty"`
	APIVersions []string `json:"apiVersions,omitempty"`
	Resources   []string `json:"resources,omitempty"`
}

// FailurePolicy is the treatment of an object whose deadline has expired.
type FailurePolicy string

// The policies.
const (
	Fail   FailurePolicy = "Fail"   // it is rejected
	Ignore FailurePolicy = "Ignore" // the initializer is passed over
)

// ReasonDeadlineExceeded is the reason of the rejection of an object whose deadline has expired. It is not Timeout, which
// tells a client that its object may still appear.
const ReasonDeadlineExceeded metav1.StatusReason = "InitializerDeadlineExceeded"

// DefaultDeadlineSeconds is the deadline of an initializer that sets none. A create that waits for its object is answered a
// few seconds later at most, so that it learns of it.
const DefaultDeadlineSeconds = 30
