// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// mutate is a mutating webhook: it sets the label team of config maps that have none.
func mutate(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var object corev1.ConfigMap
	if !read(w, r, &review) {
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if err := json.Unmarshal(review.Request.Object.Raw, &object); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if object.Labels["team"] == "" {
		operation := map[string]any{"op": "add", "path": "/metadata/labels/team", "value": "none"}
		if object.Labels == nil { // a JSON patch does not make the map
			operation = map[string]any{"op": "add", "path": "/metadata/labels", "value": map[string]string{"team": "none"}}
		}
		review.Response.Patch, _ = json.Marshal([]any{operation}) // of strings, which cannot fail
		kind := admissionv1.PatchTypeJSONPatch
		review.Response.PatchType = &kind
	}
	answer(w, review)
}

// validate is a validating webhook: it rejects config maps with a key that looks like a password.
func validate(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var object corev1.ConfigMap
	if !read(w, r, &review) {
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if err := json.Unmarshal(review.Request.Object.Raw, &object); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for key := range object.Data {
		if strings.Contains(strings.ToLower(key), "password") {
			review.Response.Allowed = false
			review.Response.Result = &metav1.Status{Code: http.StatusForbidden, Message: "the key " + key + " belongs into a Secret"}
		}
	}
	slog.Info("Validated", "namespace", review.Request.Namespace, "name", review.Request.Name, "allowed", review.Response.Allowed)
	answer(w, review)
}
