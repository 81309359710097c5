// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Target is the form that a client requests with the as, g and v parameters of a media type.
type Target struct {
	Kind    string // Table, PartialObjectMetadata, PartialObjectMetadataList
	Group   string // meta.k8s.io
	Version string // v1 or v1beta1
}

// Known reports whether the form exists.
func (t Target) Known() bool {
	if t.Group != "meta.k8s.io" || t.Version != "v1" && t.Version != "v1beta1" {
		return false
	}
	return t.Kind == "Table" || t.Kind == "PartialObjectMetadata" || t.Kind == "PartialObjectMetadataList"
}

// GroupVersion returns the apiVersion of the form.
func (t Target) GroupVersion() string { return t.Group + "/" + t.Version }

// Check rejects forms that the response cannot have: list metadata for a single object, or the reverse. goType is the
// Go type of the response (*v1.PodList).
func (t Target) Check(list bool, goType string) error {
	switch {
	case list && t.Kind == "PartialObjectMetadata":
		return NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%s)", goType))
	case !list && t.Kind == "PartialObjectMetadataList":
		return NotAcceptable(fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%s)", goType))
	}
	return nil
}

// NotAcceptable returns the 406 for a form that the server does not support.
func NotAcceptable(message string) error {
	return &errors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable, Message: message,
	}}
}
