// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The names of the kind [ConsoleExtension].
const (
	ConsoleExtensionKind     = "ConsoleExtension"
	ConsoleExtensionResource = "consoleextensions"
)

// ConsoleExtension adds links and columns to the pages of the console, Mortise's web page. It adds no code.
type ConsoleExtension struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ConsoleExtensionSpec `json:"spec"`
}

// ConsoleExtensionSpec is what is added, and to which pages. At least one of Links and Columns is set.
type ConsoleExtensionSpec struct {
	// Resource is the resource to whose lists and objects the extension adds; nil: the links are on the overview of the cluster.
	Resource *ConsoleResource `json:"resource,omitempty"`
	Links    []ConsoleLink    `json:"links,omitempty"`
	// Columns are added to the list, after those of the resource. They need Resource.
	Columns []ConsoleColumn `json:"columns,omitempty"`
}

// ConsoleResource names a resource in all its versions.
type ConsoleResource struct {
	Group    string `json:"group,omitempty"` // empty: the core group
	Resource string `json:"resource"`        // its plural
}

// ConsoleLink is a link to another page.
type ConsoleLink struct {
	Title string `json:"title"`
	// URL is an absolute URL of https or http. With a resource, it may have JSONPaths of the object in braces after the host:
	// https://grafana.example.com/d/app?var-namespace={.metadata.namespace}. The console percent-encodes the values.
	URL string `json:"url"`
}

// ConsoleColumn is a column of a list, with the fields of the columns of a CustomResourceDefinition.
type ConsoleColumn struct {
	Name string `json:"name"`
	// Type is integer, number, string, boolean or date.
	Type        string `json:"type"`
	Description string `json:"description,omitempty"`
	JSONPath    string `json:"jsonPath"` // such as .spec.replicas
	// Priority is 0 for columns that are always shown; others have less room.
	Priority int32 `json:"priority,omitempty"`
}
