// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/webhook"
)

// conversionTimeout bounds one call, as kube-apiserver's clients do.
const conversionTimeout = 30 * time.Second

// Caller makes the calls to conversion webhooks; [webhook.Caller] is one.
type Caller interface {
	Call(ctx context.Context, ref extension.Ref, p extension.Policy, t webhook.Target, request, into runtime.Object) error
}

// conversion is a definition's webhook that converts its objects from one version to another.
type conversion struct {
	call   Caller
	name   string // the definition's
	target webhook.Target
	review []string // versions of ConversionReview, the preferred first
	done   *converted
}

// newConversion returns the definition's webhook, nil if it has none.
func newConversion(def *v1.CustomResourceDefinition, call Caller) *conversion {
	c := def.Spec.Conversion
	if c == nil || c.Strategy != v1.WebhookConverter {
		return nil
	}
	out := &conversion{call: call, name: def.Name, done: newConverted(), target: webhook.Target{Name: "conversion_webhook_for_" + def.Name}}
	if c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return out
	}
	out.review = c.Webhook.ConversionReviewVersions
	cc := c.Webhook.ClientConfig
	if len(bytes.TrimSpace(cc.CABundle)) > 0 {
		out.target.CABundle = cc.CABundle
	}
	if cc.URL != nil {
		out.target.URL = *cc.URL
	}
	if s := cc.Service; s != nil {
		svc := &webhook.Service{Name: s.Name, Namespace: s.Namespace, Port: 443}
		if s.Port != nil {
			svc.Port = *s.Port
		}
		if s.Path != nil {
			svc.Path = *s.Path
		}
		out.target.Service = svc
	}
	return out
}

// badAuthority reports whether a definition has a webhook that cannot be trusted, because what is to vouch for it is no certificate.
func badAuthority(def *v1.CustomResourceDefinition) bool {
	c := def.Spec.Conversion
	if c == nil || c.Strategy != v1.WebhookConverter || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return false
	}
	bundle := bytes.TrimSpace(c.Webhook.ClientConfig.CABundle)
	return len(bundle) > 0 && !x509.NewCertPool().AppendCertsFromPEM(bundle)
}

// convert converts objects to apiVersion, in one call. Objects of that version are not sent. The given objects are not changed; the error
// names the webhook, the definition and the object.
func (c *conversion) convert(ctx context.Context, objs []*unstructured.Unstructured, apiVersion string) ([]*unstructured.Unstructured,
	error) {
	out := make([]*unstructured.Unstructured, len(objs))
	var sent []int
	var raw []runtime.RawExtension
	for i, o := range objs {
		switch {
		case empty(o):
			o = o.DeepCopy()
			o.SetAPIVersion(apiVersion)
			out[i] = o
		case o.GetAPIVersion() == apiVersion:
			out[i] = o
		default:
			sent = append(sent, i)
			raw = append(raw, runtime.RawExtension{Object: o})
		}
	}
	if len(sent) == 0 {
		return out, nil
	}
	first := objs[sent[0]]
	converted, err := c.ask(ctx, raw, apiVersion)
	if err != nil {
		return nil, fmt.Errorf("conversion webhook for %v failed: %w%s", first.GroupVersionKind(), said(err), c.about(first, len(sent) > 1))
	}
	if len(converted) != len(sent) {
		return nil, fmt.Errorf("conversion webhook for %v returned %d objects, expected %d%s", first.GroupVersionKind(), len(converted),
			len(sent), c.about(first, len(sent) > 1))
	}
	for n, i := range sent {
		u, what, err := take(objs[i], converted[n], apiVersion)
		if err != nil {
			return nil, fmt.Errorf("conversion webhook for %v returned %s in object at index %d: %w%s", objs[i].GroupVersionKind(), what, n, err,
				c.about(objs[i], false))
		}
		out[i] = u
	}
	return out, nil
}

// said returns an error without the API status that it may carry, since that is not this server's.
func said(err error) error {
	if s := apierrors.APIStatus(nil); errors.As(err, &s) {
		return errors.New(err.Error())
	}
	return err
}

// about names what an error is about.
func (c *conversion) about(o *unstructured.Unstructured, more bool) string {
	where := c.target.URL
	if s := c.target.Service; s != nil {
		where = fmt.Sprintf("service %s/%s", s.Namespace, s.Name)
	}
	object := o.GetName()
	if o.GetNamespace() != "" {
		object = o.GetNamespace() + "/" + object
	}
	if more {
		object += " and others"
	}
	return fmt.Sprintf(" (CustomResourceDefinition %s, webhook %s, object %s)", c.name, where, object)
}

// ask makes the call, in the first version of ConversionReview that is known here.
func (c *conversion) ask(ctx context.Context, objs []runtime.RawExtension, apiVersion string) ([]runtime.RawExtension, error) {
	if c.call == nil {
		return nil, errors.New("this server calls no webhooks")
	}
	ref := extension.Ref{Point: extension.ConversionWebhook, Name: c.name}
	policy := extension.Policy{Timeout: conversionTimeout}
	uid := uuid.NewUUID()
	for _, version := range c.review {
		switch version {
		case v1.SchemeGroupVersion.Version:
			in := &v1.ConversionReview{Request: &v1.ConversionRequest{UID: uid, DesiredAPIVersion: apiVersion, Objects: objs},
				Response: &v1.ConversionResponse{}}
			answer := &v1.ConversionReview{}
			if err := c.call.Call(ctx, ref, policy, c.target, in, answer); err != nil {
				return nil, err
			}
			return answered(answer, uid)
		case v1beta1.SchemeGroupVersion.Version:
			in := &v1beta1.ConversionReview{Request: &v1beta1.ConversionRequest{UID: uid, DesiredAPIVersion: apiVersion, Objects: objs},
				Response: &v1beta1.ConversionResponse{}}
			answer := &v1beta1.ConversionReview{}
			if err := c.call.Call(ctx, ref, policy, c.target, in, answer); err != nil {
				return nil, err
			}
			if answer.Response == nil {
				return nil, errors.New("no response provided")
			}
			return answer.Response.ConvertedObjects, refused(answer.Response.Result)
		}
	}
	return nil, errors.New("no supported conversion review versions")
}

func answered(a *v1.ConversionReview, uid types.UID) ([]runtime.RawExtension, error) {
	if want := v1.SchemeGroupVersion.WithKind("ConversionReview"); a.GroupVersionKind() != want {
		return nil, fmt.Errorf("expected webhook response of %v, got %v", want, a.GroupVersionKind())
	}
	if a.Response == nil {
		return nil, errors.New("no response provided")
	}
	if a.Response.UID != uid {
		return nil, fmt.Errorf("expected response.uid=%q, got %q", uid, a.Response.UID)
	}
	return a.Response.ConvertedObjects, refused(a.Response.Result)
}

// refused is the error of a result that is no success.
func refused(r metav1.Status) error {
	switch {
	case r.Status == metav1.StatusSuccess:
		return nil
	case r.Message != "":
		return errors.New(r.Message)
	}
	return fmt.Errorf("response.result.status was '%s', not 'Success'", r.Status)
}

// empty reports whether an object has no fields but its kind.
func empty(o *unstructured.Unstructured) bool {
	_, kind := o.Object["kind"]
	_, version := o.Object["apiVersion"]
	return len(o.Object) == 2 && kind && version
}

// take checks one converted object: it must be the same object in the requested version. The webhook may change only labels and
// annotations of its metadata; the rest stays the original's. What names the part that is wrong.
func take(original *unstructured.Unstructured, raw runtime.RawExtension, apiVersion string) (u *unstructured.Unstructured, what string,
	err error) {
	const object, metadata = "invalid converted object", "invalid metadata"
	u, ok := raw.Object.(*unstructured.Unstructured)
	if !ok {
		u = &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw.Raw); err != nil {
			return nil, object, err
		}
	}
	if got := u.GetAPIVersion(); got != apiVersion {
		return nil, object, fmt.Errorf("invalid groupVersion (expected %v, received %v)", apiVersion, got)
	}
	for _, same := range []struct{ what, want, got string }{
		{"kind", original.GetKind(), u.GetKind()},
		{"name", original.GetName(), u.GetName()},
		{"namespace", original.GetNamespace(), u.GetNamespace()},
		{"UID", string(original.GetUID()), string(u.GetUID())},
	} {
		if same.want != same.got {
			return nil, object, fmt.Errorf("must have the same %s: %v != %v", same.what, same.want, same.got)
		}
	}
	if err := keepMetadata(original, u); err != nil {
		return nil, metadata, err
	}
	return u, "", nil
}

func keepMetadata(original, converted *unstructured.Unstructured) error {
	raw, ok := converted.Object["metadata"]
	if !ok {
		return errors.New("missing metadata in converted object")
	}
	theirs, ok := raw.(map[string]any)
	if !ok {
		return fmt.Errorf("invalid metadata of type %T in converted object", raw)
	}
	ours := map[string]any{}
	if m, ok := original.Object["metadata"]; ok {
		if ours, ok = runtime.DeepCopyJSONValue(m).(map[string]any); !ok {
			return fmt.Errorf("invalid metadata of type %T in input object", m)
		}
	}
	for _, name := range []string{"labels", "annotations"} {
		raw := theirs[name]
		if raw == nil {
			delete(ours, name)
			continue
		}
		values, ok := raw.(map[string]any)
		if !ok {
			return fmt.Errorf("invalid metadata.%s of type %T in converted object", name, raw)
		}
		before, ok := ours[name].(map[string]any)
		if !ok && ours[name] != nil {
			return fmt.Errorf("invalid metadata.%s of type %T in original object", name, ours[name])
		}
		changed := len(before) != len(values)
		text := make(map[string]string, len(values))
		for k, v := range values {
			s, ok := v.(string)
			if !ok {
				return fmt.Errorf("metadata.%s[%s] must be a string, but is %T in converted object", name, k, v)
			}
			text[k] = s
			changed = changed || before[k] != v
		}
		if changed {
			var errs field.ErrorList
			if name == "labels" {
				errs = metav1validation.ValidateLabels(text, field.NewPath("metadata", name))
			} else {
				errs = apivalidation.ValidateAnnotations(text, field.NewPath("metadata", "annotation")) // upstream's words
			}
			if len(errs) > 0 {
				return errs.ToAggregate()
			}
		}
		ours[name] = values
	}
	converted.Object["metadata"] = ours
	return nil
}
