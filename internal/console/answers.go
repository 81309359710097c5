// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// newStatus returns an error with its own HTTP code.
func newStatus(code int, message string) error {
	return &apierrors.StatusError{ErrStatus: statusOf(code, message)}
}

// statusOf returns a failure as an object of the API.
func statusOf(code int, message string) metav1.Status {
	reason := metav1.StatusReasonUnknown
	switch code {
	case http.StatusBadRequest:
		reason = metav1.StatusReasonBadRequest
	case http.StatusUnauthorized:
		reason = metav1.StatusReasonUnauthorized
	case http.StatusForbidden:
		reason = metav1.StatusReasonForbidden
	case http.StatusNotFound:
		reason = metav1.StatusReasonNotFound
	case http.StatusMethodNotAllowed:
		reason = metav1.StatusReasonMethodNotAllowed
	case http.StatusGone:
		reason = metav1.StatusReasonExpired
	case http.StatusRequestEntityTooLarge:
		reason = metav1.StatusReasonRequestEntityTooLarge
	case http.StatusUnsupportedMediaType:
		reason = metav1.StatusReasonUnsupportedMediaType
	case http.StatusTooManyRequests:
		reason = metav1.StatusReasonTooManyRequests
	case http.StatusInternalServerError:
		reason = metav1.StatusReasonInternalError
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		reason = metav1.StatusReasonServiceUnavailable
	}
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Message: message, Reason: reason,
		Code: int32(code),
	}
}

func forbidden(message string) error { return newStatus(http.StatusForbidden, message) }

// writeError writes an error as a Status.
func writeError(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	status := statusOf(http.StatusInternalServerError, "the console had an error")
	if errors.As(err, &known) {
		status = known.Status()
	}
	writeJSON(w, int(status.Code), &status)
}

// writeJSON writes a value as JSON.
func writeJSON(w http.ResponseWriter, code int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "encode response: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // the client may have left
}

// bodyBytes limits the body of a request to the console itself. A token is the largest part.
const bodyBytes = 64 << 10

// readJSON decodes the JSON body of a request.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return newStatus(http.StatusUnsupportedMediaType, "the body must be application/json")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytes))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return newStatus(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is longer than %d bytes", bodyBytes))
	case err != nil:
		return newStatus(http.StatusBadRequest, "read body: "+err.Error())
	}
	if err := json.Unmarshal(body, into); err != nil {
		return newStatus(http.StatusBadRequest, "the body is not the JSON that this path takes")
	}
	return nil
}
