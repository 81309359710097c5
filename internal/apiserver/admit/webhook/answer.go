// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"errors"
	"fmt"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// answer is the response of a webhook, of either version.
type answer struct {
	annotations map[string]string
	allowed     bool
	patch       []byte
	patchType   admissionv1.PatchType
	changes     jsonpatch.Patch // patch, decoded
	unreadable  error           // why patch is invalid
	result      *metav1.Status
	warnings    []string
}

// failed is the error of a webhook that could not be called, or whose response is invalid. The failure policy decides what follows.
type failed struct {
	webhook string // its name, as in errors
	reason  error
	code    int32 // the status code for metrics
}

func (e *failed) Error() string {
	return fmt.Sprintf("failed calling webhook %s: %v", e.webhook, e.reason) // upstream's words
}

func (e *failed) Unwrap() error { return e.reason }

// rejected is the error of a request that a webhook denied.
type rejected struct{ *apierrors.StatusError }

func emptyAnswer(version string) runtime.Object {
	if version == "v1" {
		return &admissionv1.AdmissionReview{}
	}
	return &admissionv1beta1.AdmissionReview{}
}

// check reads a response. One in v1 must have the review's uid and only fields that the kind of webhook may set.
func check(uid types.UID, mutating bool, review runtime.Object) (*answer, error) {
	switch r := review.(type) {
	case *admissionv1.AdmissionReview:
		return checkV1(uid, mutating, r)
	case *admissionv1beta1.AdmissionReview:
		if r.Response == nil {
			return nil, errors.New("webhook response was absent") // upstream's words
		}
		a := &answer{annotations: r.Response.AuditAnnotations, allowed: r.Response.Allowed, result: r.Response.Result,
			warnings: r.Response.Warnings}
		if mutating && len(r.Response.Patch) > 0 {
			a.patch, a.patchType = r.Response.Patch, admissionv1.PatchTypeJSONPatch
		}
		return a, nil
	}
	return nil, fmt.Errorf("unexpected response type %T", review) // upstream's words
}

// readPatch decodes the patch of a response that allows the object. It returns errors that do not depend on the patched
// object.
func (a *answer) readPatch() error {
	if !a.allowed || len(a.patch) == 0 {
		return nil
	}
	if a.changes, a.unreadable = jsonpatch.DecodePatch(a.patch); a.unreadable != nil {
		return a.unreadable
	}
	if a.patchType != admissionv1.PatchTypeJSONPatch && len(a.changes) > 0 {
		return fmt.Errorf("unsupported patch type %q", a.patchType) // upstream's words
	}
	return nil
}

func checkV1(uid types.UID, mutating bool, r *admissionv1.AdmissionReview) (*answer, error) {
	res := r.Response
	if res == nil {
		return nil, errors.New("webhook response was absent") // upstream's words
	}
	if res.UID != uid {
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, res.UID) // upstream's words
	}
	if want := admissionv1.SchemeGroupVersion.WithKind("AdmissionReview"); r.GroupVersionKind() != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want.String(), r.GroupVersionKind().String()) // upstream's words
	}
	a := &answer{annotations: res.AuditAnnotations, allowed: res.Allowed, result: res.Result, warnings: res.Warnings}
	if !mutating {
		if len(res.Patch) > 0 {
			return nil, errors.New("validating webhook may not return response.patch") // upstream's words
		}
		if res.PatchType != nil {
			return nil, errors.New("validating webhook may not return response.patchType") // upstream's words
		}
		return a, nil
	}
	switch {
	case len(res.Patch) > 0 && res.PatchType == nil:
		return nil, errors.New("webhook returned response.patch but not response.patchType") // upstream's words
	case len(res.Patch) == 0 && res.PatchType != nil:
		return nil, errors.New("webhook returned response.patchType but not response.patch") // upstream's words
	}
	a.patch = res.Patch
	if res.PatchType != nil {
		if a.patchType = *res.PatchType; a.patchType == "" {
			return nil, fmt.Errorf("webhook returned invalid response.patchType of %q", a.patchType) // upstream's words
		}
	}
	return a, nil
}

// refusal returns the API status of a webhook's rejection. It is an error even if the webhook's status is not.
func refusal(title string, result *metav1.Status) *apierrors.StatusError {
	st := metav1.Status{Status: metav1.StatusFailure}
	if result != nil {
		st = *result
	}
	if st.Code < http.StatusBadRequest {
		st.Code = http.StatusBadRequest
	}
	if st.Status == "" || st.Status == metav1.StatusSuccess {
		st.Status = metav1.StatusFailure
	}
	by := fmt.Sprintf("admission webhook %s denied the request", title) // upstream's words
	switch {
	case st.Message != "":
		st.Message = by + ": " + st.Message
	case st.Reason != "":
		st.Message = by + ": " + string(st.Reason)
	default:
		st.Message = by + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: st}
}
