// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InitializersAnnotation holds the [Initializers] of an object that is not initialised yet. One without it is.
const InitializersAnnotation = Group + "/initializers"

// Initializers is the list of initializers that an object waits for.
type Initializers struct {
	// Pending must come off in their order, the first first.
	Pending []Pending `json:"pending"`
	// Since is when the first of Pending became that; the server sets it.
	Since metav1.MicroTime `json:"since,omitzero"`
	// Result, once set, is why the object is rejected.
	Result *metav1.Status `json:"result,omitempty"`
}

// Pending is one initializer that has still to come. The server sets all but the name, from the configuration.
type Pending struct {
	Name            string        `json:"name"`
	DeadlineSeconds int64         `json:"deadlineSeconds,omitempty"`
	FailurePolicy   FailurePolicy `json:"failurePolicy,omitempty"`
}

// maxEncoded bounds the annotation: it is the maximum size of all annotations of an object.
const maxEncoded = 256 << 10

// DecodeInitializers reads an annotation's value.
func DecodeInitializers(value string) (*Initializers, error) {
	if len(value) > maxEncoded {
		return nil, fmt.Errorf("decode initializers: %d bytes: want %d at most", len(value), maxEncoded)
	}
	i := &Initializers{}
	if err := json.Unmarshal([]byte(value), i); err != nil {
		return nil, fmt.Errorf("decode initializers: %w", err)
	}
	for n, p := range i.Pending {
		if p.Name == "" {
			return nil, fmt.Errorf("decode initializers: pending[%d] has no name", n)
		}
	}
	return i, nil
}

// Encode is the annotation's value.
func (i *Initializers) Encode() (string, error) {
	b, err := json.Marshal(i)
	if err != nil {
		return "", fmt.Errorf("encode initializers: %w", err)
	}
	return string(b), nil
}

// Names are those of Pending.
func (i *Initializers) Names() []string {
	names := make([]string, len(i.Pending))
	for n, p := range i.Pending {
		names[n] = p.Name
	}
	return names
}

// Done reports whether the object is initialized: no initializer is pending.
func (i *Initializers) Done() bool { return len(i.Pending) == 0 && i.Result == nil }

// InitializersOf decodes the annotation of an object; nil if there is none. An invalid value is an error: no initializer
// can act on it.
func InitializersOf(obj metav1.Object) (*Initializers, error) {
	value, ok := obj.GetAnnotations()[InitializersAnnotation]
	if !ok {
		return nil, nil
	}
	return DecodeInitializers(value)
}

// Uninitialized reports whether an object waits for an initializer, or was rejected by one.
func Uninitialized(obj metav1.Object) bool {
	i, err := InitializersOf(obj)
	return err == nil && i != nil && !i.Done()
}

// SetInitializers sets the annotation of an object; nil removes it.
func SetInitializers(obj metav1.Object, i *Initializers) error {
	all := maps.Clone(obj.GetAnnotations())
	if i == nil {
		delete(all, InitializersAnnotation)
		if len(all) == 0 {
			all = nil
		}
		obj.SetAnnotations(all)
		return nil
	}
	value, err := i.Encode()
	if err != nil {
		return err
	}
	if all == nil {
		all = map[string]string{}
	}
	all[InitializersAnnotation] = value
	obj.SetAnnotations(all)
	return nil
}

// Turn reports whether the initializer of that name is the next of the object's list.
func Turn(obj metav1.Object, name string) bool {
	i, err := InitializersOf(obj)
	return err == nil && i != nil && i.Result == nil && len(i.Pending) > 0 && i.Pending[0].Name == name
}

// Finish removes the initializer name, the next of the object's list, from it. The caller then updates the object, which
// has passed that initializer.
func Finish(obj metav1.Object, name string) error {
	i, err := InitializersOf(obj)
	if err != nil {
		return err
	}
	if !Turn(obj, name) {
		return fmt.Errorf("finish initializer %s: it is not its turn", name)
	}
	if i.Pending = i.Pending[1:]; len(i.Pending) == 0 {
		return SetInitializers(obj, nil)
	}
	return SetInitializers(obj, i)
}

// Reject records in an object, whose next initializer is name, why it is rejected. When the caller updates the object, the
// server deletes it and responds to the waiting create with the code, reason and message.
func Reject(obj metav1.Object, name string, code int32, reason metav1.StatusReason, message string) error {
	i, err := InitializersOf(obj)
	if err != nil {
		return err
	}
	if !Turn(obj, name) {
		return fmt.Errorf("reject by initializer %s: it is not its turn", name)
	}
	i.Result = &metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}
	return SetInitializers(obj, i)
}

// SeeUninitialized has the reads of a client (its lists and watches) show objects that are not initialised:
//
//	config.Wrap(v1alpha1.SeeUninitialized)
//
// Its creates then do not wait for the initialisation of what they make.
func SeeUninitialized(next http.RoundTripper) http.RoundTripper { return seeing{next} }

// IncludeUninitialized is the query parameter.
const IncludeUninitialized = "includeUninitialized"

type seeing struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (s seeing) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodPost {
		return s.next.RoundTrip(r)
	}
	r = r.Clone(r.Context())
	q := r.URL.Query()
	q.Set(IncludeUninitialized, "true")
	r.URL.RawQuery = q.Encode()
	return s.next.RoundTrip(r)
}

// WrappedRoundTripper returns the wrapped transport, for callers that unwrap transports.
func (s seeing) WrappedRoundTripper() http.RoundTripper { return s.next }
