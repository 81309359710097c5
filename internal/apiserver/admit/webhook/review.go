// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
)

// reviews encodes the reviews for webhooks: the objects once for each form, the whole once for each form and review version, so that
// equal reviews differ in their uid alone.
type reviews struct {
	q *matching.Request

	mu      sync.Mutex
	objects map[runtime.Object][]byte // the JSON of each object
	whole   map[reviewKey][2][]byte   // the parts before and after the uid
}

type reviewKey struct {
	*matching.Versioned
	version string
}

// of returns the review in a version that the webhook accepts, with its uid.
func (r *reviews) of(h *hook, v *matching.Versioned) (types.UID, string, []byte, error) {
	version := ""
	for _, said := range h.versions {
		if said == "v1" || said == "v1beta1" {
			version = said
			break
		}
	}
	if version == "" {
		return "", "", nil, errors.New("webhook does not accept known AdmissionReview versions (v1, v1beta1)") // upstream's words
	}
	parts, err := r.encoded(reviewKey{v, version})
	if err != nil {
		return "", "", nil, err
	}
	uid := uuid.NewUUID()
	body := make([]byte, 0, len(parts[0])+len(uid)+len(parts[1]))
	body = append(append(append(body, parts[0]...), uid...), parts[1]...)
	return uid, version, body, nil
}

func (r *reviews) encoded(k reviewKey) ([2][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.whole[k]; ok {
		return p, nil
	}
	p, err := r.make(k)
	if err != nil {
		return p, err
	}
	if r.whole == nil {
		r.whole = map[reviewKey][2][]byte{}
	}
	r.whole[k] = p
	return p, nil
}

// raw returns an object's JSON, encoded once.
func (r *reviews) raw(obj runtime.Object) (runtime.RawExtension, error) {
	if obj == nil {
		return runtime.RawExtension{}, nil
	}
	if b, ok := r.objects[obj]; ok {
		return runtime.RawExtension{Raw: b}, nil
	}
	b, err := json.Marshal(obj)
	if err != nil {
		return runtime.RawExtension{}, fmt.Errorf("encode %s: %w", obj.GetObjectKind().GroupVersionKind().Kind, err)
	}
	if r.objects == nil {
		r.objects = map[runtime.Object][]byte{}
	}
	r.objects[obj] = b
	return runtime.RawExtension{Raw: b}, nil
}

// make encodes a review as package json would. That package would read and copy the objects inside twice. The versions
// differ only in their name.
func (r *reviews) make(k reviewKey) (parts [2][]byte, err error) {
	q := r.q
	object, err := r.raw(k.Object)
	if err != nil {
		return parts, err
	}
	old, err := r.raw(k.Old)
	if err != nil {
		return parts, err
	}
	var options runtime.RawExtension
	if q.Operation != admit.Connect && q.Options != nil {
		if options, err = r.raw(q.Options); err != nil {
			return parts, err
		}
	}
	own := q.Form()
	parts[0] = []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/` + k.version + `","request":{"uid":"`)
	w := writer{make([]byte, 0, 1024+len(object.Raw)+len(old.Raw)+len(options.Raw))}
	w.raw(`"`)
	w.kind(`,"kind":`, k.Kind)
	w.resource(`,"resource":`, k.Resource)
	w.some(`,"subResource":`, q.Subresource)
	w.kind(`,"requestKind":`, own.Kind)
	w.resource(`,"requestResource":`, own.Resource)
	w.some(`,"requestSubResource":`, q.Subresource)
	w.some(`,"name":`, q.Name)
	w.some(`,"namespace":`, q.Namespace)
	w.text(`,"operation":`, string(q.Operation))
	if err := w.user(`,"userInfo":`, q.User); err != nil {
		return parts, err
	}
	w.object(`,"object":`, object)
	w.object(`,"oldObject":`, old)
	w.raw(`,"dryRun":`, strconv.FormatBool(q.DryRun))
	w.object(`,"options":`, options)
	w.raw(`}}`)
	parts[1] = w.b
	return parts, nil
}

// writer writes JSON.
type writer struct{ b []byte }

func (w *writer) raw(texts ...string) {
	for _, t := range texts {
		w.b = append(w.b, t...)
	}
}

// text writes a member with a string value.
func (w *writer) text(name, value string) {
	w.b = append(w.b, name...)
	for i := range len(value) {
		if c := value[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			b, _ := json.Marshal(value) // a string always can be encoded
			w.b = append(w.b, b...)
			return
		}
	}
	w.b = append(append(append(w.b, '"'), value...), '"')
}

// some writes a member with a string value unless it is empty.
func (w *writer) some(name, value string) {
	if value != "" {
		w.text(name, value)
	}
}

func (w *writer) kind(name string, k schema.GroupVersionKind) {
	w.raw(name)
	w.text(`{"group":`, k.Group)
	w.text(`,"version":`, k.Version)
	w.text(`,"kind":`, k.Kind)
	w.raw(`}`)
}

func (w *writer) resource(name string, r schema.GroupVersionResource) {
	w.raw(name)
	w.text(`{"group":`, r.Group)
	w.text(`,"version":`, r.Version)
	w.text(`,"resource":`, r.Resource)
	w.raw(`}`)
}

func (w *writer) object(name string, o runtime.RawExtension) {
	w.raw(name)
	if o.Raw == nil {
		w.raw("null")
	}
	w.b = append(w.b, o.Raw...)
}

func (w *writer) user(name string, u user.Info) error {
	info := authenticationv1.UserInfo{}
	if u != nil {
		info = authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
		if extra := u.GetExtra(); len(extra) > 0 {
			info.Extra = make(map[string]authenticationv1.ExtraValue, len(extra))
			for key, value := range extra {
				info.Extra[key] = value
			}
		}
	}
	b, err := json.Marshal(&info)
	if err != nil {
		return fmt.Errorf("encode user: %w", err)
	}
	w.raw(name, string(b))
	return nil
}
