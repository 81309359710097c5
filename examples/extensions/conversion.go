// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// convert is the conversion webhook of the kind Box: v1 has spec.size as a text, "3x4", and v2 has spec.width and spec.height.
func convert(w http.ResponseWriter, r *http.Request) {
	var review apiextensionsv1.ConversionReview
	if !read(w, r, &review) {
		return
	}
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, object := range review.Request.Objects {
		var box unstructured.Unstructured
		err := box.UnmarshalJSON(object.Raw)
		if err == nil {
			err = convertBox(&box, review.Request.DesiredAPIVersion)
		}
		if err != nil { // the whole request fails: an answer has all objects, in their order
			response.ConvertedObjects = nil
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			break
		}
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: &box})
	}
	review.Request, review.Response = nil, response
	answer(w, review)
}

func convertBox(box *unstructured.Unstructured, to string) error {
	box.SetAPIVersion(to)
	spec, _, err := unstructured.NestedMap(box.Object, "spec")
	if err != nil || spec == nil {
		return err
	}
	switch size, isText := spec["size"].(string); {
	case to == "example.com/v2" && isText:
		var width, height int64
		if _, err := fmt.Sscanf(size, "%dx%d", &width, &height); err != nil {
			return fmt.Errorf("spec.size %q is not WIDTHxHEIGHT", size)
		}
		spec = map[string]any{"width": width, "height": height}
	case to == "example.com/v1" && !isText:
		spec = map[string]any{"size": fmt.Sprintf("%vx%v", spec["width"], spec["height"])}
	}
	return unstructured.SetNestedMap(box.Object, spec, "spec")
}
