// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	admissionv1beta1 "k8s.io/api/admission/v1beta1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
)

// reviews encodes what webhooks are asked: the objects once for each form, the whole once for each form and review version,
// so that webhooks that are asked the same differ in the review's uid alone.
type reviews struct {
	q *matching.Request

	mu      sync.Mutex
	objects map[runtime.Object][]byte
	whole   map[reviewKey][2][]byte // what comes before the uid, and after it
}

type reviewKey struct {
	*matching.Versioned
	version string
}

// place is where the uid goes: it needs no escapes in JSON and is in no review by itself.
const place = types.UID("\u2063uid\u2063")

// of is the review of a version that the webhook takes, with its uid.
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
	parts, err := r.parts(reviewKey{v, version})
	if err != nil {
		return "", "", nil, err
	}
	uid := uuid.NewUUID()
	body := make([]byte, 0, len(parts[0])+len(uid)+len(parts[1]))
	body = append(append(append(body, parts[0]...), uid...), parts[1]...)
	return uid, version, body, nil
}

func (r *reviews) parts(k reviewKey) ([2][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.whole[k]; ok {
		return p, nil
	}
	review, err := r.make(k)
	if err != nil {
		return [2][]byte{}, err
	}
	b, err := json.Marshal(review)
	if err != nil {
		return [2][]byte{}, fmt.Errorf("encode review: %w", err)
	}
	before, after, ok := bytes.Cut(b, []byte(place))
	if !ok {
		return [2][]byte{}, errors.New("encode review: no place for its uid")
	}
	p := [2][]byte{before, after}
	if r.whole == nil {
		r.whole = map[reviewKey][2][]byte{}
	}
	r.whole[k] = p
	return p, nil
}

// raw is an object's JSON, made once.
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

func (r *reviews) make(k reviewKey) (any, error) {
	q := r.q
	object, err := r.raw(k.Object)
	if err != nil {
		return nil, err
	}
	old, err := r.raw(k.Old)
	if err != nil {
		return nil, err
	}
	var options runtime.RawExtension
	if q.Operation != admit.Connect && q.Options != nil {
		if options, err = r.raw(q.Options); err != nil {
			return nil, err
		}
	}
	user := authenticationv1.UserInfo{}
	if u := q.User; u != nil {
		user = authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: map[string]authenticationv1.ExtraValue{}}
		for key, value := range u.GetExtra() {
			user.Extra[key] = value
		}
	}
	own := q.Form()
	requestKind, requestResource := metav1.GroupVersionKind(own.Kind), metav1.GroupVersionResource(own.Resource)
	dryRun := q.DryRun
	if k.version == "v1" {
		return &admissionv1.AdmissionReview{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
			Request: &admissionv1.AdmissionRequest{
				UID: place, Kind: metav1.GroupVersionKind(k.Kind), Resource: metav1.GroupVersionResource(k.Resource), SubResource: q.Subresource,
				RequestKind: &requestKind, RequestResource: &requestResource, RequestSubResource: q.Subresource,
				Name: q.Name, Namespace: q.Namespace, Operation: admissionv1.Operation(q.Operation), UserInfo: user,
				Object: object, OldObject: old, DryRun: &dryRun, Options: options,
			},
		}, nil
	}
	return &admissionv1beta1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1beta1.SchemeGroupVersion.String(), Kind: "AdmissionReview"},
		Request: &admissionv1beta1.AdmissionRequest{
			UID: place, Kind: metav1.GroupVersionKind(k.Kind), Resource: metav1.GroupVersionResource(k.Resource), SubResource: q.Subresource,
			RequestKind: &requestKind, RequestResource: &requestResource, RequestSubResource: q.Subresource,
			Name: q.Name, Namespace: q.Namespace, Operation: admissionv1beta1.Operation(q.Operation), UserInfo: user,
			Object: object, OldObject: old, DryRun: &dryRun, Options: options,
		},
	}, nil
}
