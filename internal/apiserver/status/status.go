// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package status converts errors to metav1.Status responses, as clients of Kubernetes expect them, and writes them.
//
// [Of] is the one place that maps classes of errors (API statuses, store errors, ended contexts) to codes and reasons.
// [Write] sends a status in the form that the client accepts.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/apiserver/audit"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/internal/apiserver/negotiate"
	"github.com/mortise-dev/mortise/store"
)

// Of returns the status of an error.
func Of(err error) *metav1.Status {
	var api apierrors.APIStatus
	if errors.As(err, &api) {
		s := api.Status()
		s.Kind, s.APIVersion = "Status", "v1"
		if s.Status == "" {
			s.Status = metav1.StatusFailure
		}
		if s.Code == 0 {
			s.Code = http.StatusInternalServerError
			if s.Status == metav1.StatusSuccess {
				s.Code = http.StatusOK
			}
		}
		return &s
	}
	if e := (*store.UnreadableError)(nil); errors.As(err, &e) {
		return Of(unreadable(e))
	}
	switch {
	case errors.Is(err, store.ErrCompacted):
		return Of(Expired(""))
	case errors.Is(err, store.ErrTooLarge):
		return Of(apierrors.NewRequestEntityTooLargeError(err.Error()))
	case errors.Is(err, store.ErrNoSpace), errors.Is(err, store.ErrClosed):
		return Of(apierrors.NewServiceUnavailable(err.Error()))
	case errors.Is(err, context.DeadlineExceeded):
		// upstream's words
		return Of(apierrors.NewTimeoutError("request did not complete within requested timeout - context deadline exceeded", 0))
	}
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     http.StatusInternalServerError,
		Message:  err.Error(),
	}
}

// Expired returns the 410 for a revision that history no longer contains. With a continue token the client can continue
// the list, although not at one revision.
func Expired(continueToken string) error {
	if continueToken == "" {
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	}
	e := apierrors.NewResourceExpired("The provided continue parameter is too old " +
		"to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this " +
		"response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects " +
		"that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.")
	e.ErrStatus.ListMeta.Continue = continueToken
	return e
}

// TooLarge returns the 504 for a revision that the store has not reached.
func TooLarge(want, current int64) error {
	e := apierrors.NewTimeoutError(fmt.Sprintf("Too large resource version: %d, current: %d", want, current), 1)
	e.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge, Message: "Too large resource version"}}
	return e
}

// Route returns the error for a request that no handler serves: 404, 405, 406 and 415 as routers return them.
func Route(code int, message string) error {
	return apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", message, 0, false)
}

// Media returns an error about media types, which has no details.
func Media(code int, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message}}
}

// Refuse is Write for authorization failures. The message repeats the client's text, which browsers must not interpret
// as a page.
func Refuse(w http.ResponseWriter, r *http.Request, err error) int {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	return Write(w, r, err)
}

// Write writes the error's status, and returns the code.
func Write(w http.ResponseWriter, r *http.Request, err error) int {
	s := Of(err)
	audit.Status(r.Context(), s)
	explain.From(r.Context()).Refused(s)
	code := int(s.Code)
	h := w.Header()
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	h.Set("Cache-Control", "no-cache, private")
	body, media := encode(s, r)
	h.Set("Content-Type", media)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have left
	}
	return code
}

// encode encodes a status in a form that the client accepts, or else as indented JSON.
func encode(s *metav1.Status, r *http.Request) ([]byte, string) {
	accept := r.Header.Get("Accept")
	f, ok := negotiate.Parse(accept).Choose(accept, &negotiate.Offer{Media: negotiate.Types(negotiate.SpeaksCBOR(r.Context()))})
	switch f.Media {
	case negotiate.Protobuf:
		if raw, err := s.Marshal(); err == nil {
			u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Status"}, Raw: raw}
			if b, err := u.Marshal(); err == nil {
				return append([]byte("k8s\x00"), b...), f.Media
			}
		}
	case negotiate.YAML:
		if b, err := yaml.Marshal(s); err == nil {
			return b, f.Media
		}
	case negotiate.CBOR:
		if b, err := cbor.Marshal(s); err == nil {
			return append([]byte("\xd9\xd9\xf7"), b...), f.Media
		}
	}
	if !ok || f.Pretty || negotiate.Pretty(r) {
		b, err := json.MarshalIndent(s, "", "  ")
		if err != nil {
			panic(fmt.Sprintf("encode status: %v", err)) // a Status can always be encoded
		}
		return b, negotiate.JSON
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("encode status: %v", err)) // a Status can always be encoded
	}
	return append(b, '\n'), negotiate.JSON
}
