// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package manifests reads webhooks and policies from files instead of the API: a directory of YAML or JSON documents whose
// names end in .static.k8s.io. They are in force from the first request on, and no user can remove them through the API.
//
// [Webhooks] and [Policies] read a directory once. [Follow] reads it again when it changes. Manifests with errors are
// not used; the previous ones stay in force.
package manifests

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission/plugin/manifest"
	policyloader "k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"
	webhookloader "k8s.io/apiserver/pkg/admission/plugin/webhook/manifest/loader"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
	"github.com/mortise-dev/mortise/resource"
)

// every is the interval at which a directory is read without an event.
const every = time.Minute

// decoder strictly decodes the kinds that files may hold, and lists of them.
func decoder() runtime.Decoder {
	s := runtime.NewScheme()
	s.AddKnownTypes(admissionregistrationv1.SchemeGroupVersion,
		&admissionregistrationv1.ValidatingWebhookConfiguration{}, &admissionregistrationv1.ValidatingWebhookConfigurationList{},
		&admissionregistrationv1.MutatingWebhookConfiguration{}, &admissionregistrationv1.MutatingWebhookConfigurationList{},
		&admissionregistrationv1.ValidatingAdmissionPolicy{}, &admissionregistrationv1.ValidatingAdmissionPolicyList{},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{}, &admissionregistrationv1.ValidatingAdmissionPolicyBindingList{},
		&admissionregistrationv1.MutatingAdmissionPolicy{}, &admissionregistrationv1.MutatingAdmissionPolicyList{},
		&admissionregistrationv1.MutatingAdmissionPolicyBinding{}, &admissionregistrationv1.MutatingAdmissionPolicyBindingList{})
	s.AddKnownTypes(schema.GroupVersion{Version: "v1"}, &metav1.List{})
	return serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
}

// Webhooks reads the configurations of one kind, sorted by name, and returns a hash of their source.
func Webhooks(h *admit.Host, r schema.GroupResource, dir string) ([]resource.Object, string, error) {
	kind := h.Kind(r)
	if kind == nil {
		return nil, "", fmt.Errorf("read %s: %s is not served", dir, r)
	}
	return webhookloader.LoadManifests(dir, decoder(), accept(kind, errors.New("unsupported resource type"))) // upstream's words
}

// Policies does the same for policies and their bindings.
func Policies(h *admit.Host, policies, bindings schema.GroupResource, dir string) (ps, bs []resource.Object, hash string, err error) {
	pk, bk := h.Kind(policies), h.Kind(bindings)
	if pk == nil || bk == nil {
		return nil, nil, "", fmt.Errorf("read %s: %s is not served", dir, policies)
	}
	policy, binding := accept(pk, policyloader.ErrUnrecognizedType), accept(bk, policyloader.ErrUnrecognizedType)
	return policyloader.LoadPolicyManifests(dir, decoder(), policy, binding, func(b resource.Object) string {
		switch b := b.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			return b.Spec.PolicyName
		case *admissionregistrationv1.MutatingAdmissionPolicyBinding:
			return b.Spec.PolicyName
		}
		return ""
	})
}

// accept takes objects of a kind and lists of them. It applies defaults and validates them as the API does.
func accept(d *resource.Descriptor, other error) func(runtime.Object) ([]resource.Object, error) {
	return func(obj runtime.Object) (out []resource.Object, err error) {
		take := func(item runtime.Object) error {
			o, ok := item.(resource.Object)
			if !ok {
				return fmt.Errorf("%w %T", other, item)
			}
			out = append(out, o)
			return check(d, o)
		}
		switch obj.GetObjectKind().GroupVersionKind().Kind {
		case d.Kind:
			err = take(obj)
		case d.ListKind:
			err = meta.EachListItem(obj, take)
		default:
			err = fmt.Errorf("%w %T", other, obj)
		}
		return out, err
	}
}

// check applies defaults and validates. The API rejects the names that files must have, so check validates under
// another name.
func check(d *resource.Descriptor, obj resource.Object) error {
	if v := d.Hub(); v.Default != nil {
		v.Default(obj)
	}
	if d.Strategy.Validate == nil {
		return nil
	}
	asked := obj.DeepCopyObject().(resource.Object)
	asked.SetName(strings.TrimSuffix(asked.GetName(), manifest.StaticConfigSuffix))
	return d.Strategy.Validate(context.Background(), asked).ToAggregate()
}

// Follow calls load whenever the directory may have changed, until ctx ends. load reports whether there were changes.
// Follow logs its error, and the previous manifests stay in force.
func Follow(ctx context.Context, log *slog.Logger, dir string, load func() (bool, error)) {
	reload.Watch(ctx, every, log, func() {
		switch changed, err := load(); {
		case err != nil:
			log.ErrorContext(ctx, "Could not reload admission manifests, keeping the previous ones", "dir", dir, "error", err)
		case changed:
			log.InfoContext(ctx, "Reloaded admission manifests", "dir", dir)
		}
	}, filepath.Join(dir, "manifest"))
}
