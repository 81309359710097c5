// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package webhooktrust issues serving certificates for extensions. For a configuration with the annotation extension.mortise.dev/trust:
// managed, it keeps a serving certificate in a Secret for each service that the configuration names, and fills in the configuration's
// caBundle.
//
// A configuration is a Mutating- or ValidatingWebhookConfiguration, a CustomResourceDefinition with a conversion webhook, or an
// APIService. The Secret lies in the service's namespace and is called after the service (web-tls), or as the annotation
// extension.mortise.dev/secret says; services of one namespace that name the same Secret share a certificate. Its type is
// kubernetes.io/tls, its keys are tls.crt, tls.key and ca.crt (what is trusted); next.crt and next.key while a rotation is under
// way. The controller leaves a Secret without the annotation alone. Package trust decides when to rotate; the queue brings the
// key back at that time. What is not managed any more is left as it is.
package webhooktrust

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension/trust"
	"github.com/mortise-dev/mortise/internal/controllers"
)

// The annotations.
const (
	Annotation       = "extension.mortise.dev/trust" // Managed, on a configuration that needs certificates and on each managed Secret
	Managed          = "managed"
	SecretAnnotation = "extension.mortise.dev/secret" // on a configuration: the Secret's name
)

// Name selects the controller.
const Name = "webhook-trust-controller"

// kinds returns the resources of configurations.
func kinds() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	}
}

// Controller describes the loop.
func Controller() controllers.Controller {
	secrets := corev1.SchemeGroupVersion.WithResource("secrets")
	return controllers.Controller{
		Name:    Name,
		Account: Name,
		Rules:   rules(),
		Inputs:  []schema.GroupVersionResource{secrets},
		Outputs: append(kinds(), secrets),
		New:     build,
	}
}

// rules let the controller manage secrets and update configurations.
func rules() []rbacv1.PolicyRule {
	rule := func(group string, verbs []string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
	}
	change := []string{"get", "update"}
	return []rbacv1.PolicyRule{
		rule("", []string{"create", "get", "update"}, "secrets"),
		rule("", []string{"create", "patch", "update"}, "events"),
		rule("events.k8s.io", []string{"create", "patch", "update"}, "events"),
		rule("admissionregistration.k8s.io", change, "mutatingwebhookconfigurations", "validatingwebhookconfigurations"),
		rule("apiextensions.k8s.io", change, "customresourcedefinitions"),
		rule("apiregistration.k8s.io", change, "apiservices"),
	}
}

// source is one configuration.
type source struct {
	schema.GroupVersionResource
	name string
}

type controller struct {
	client   kubernetes.Interface
	dynamic  dynamic.Interface
	secrets  corelisters.SecretLister
	recorder record.EventRecorder
	log      *slog.Logger
	clock    clock.PassiveClock
	queue    *controllers.Queue[source]

	sharers sharers
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	informer := d.Informers.Core().V1().Secrets()
	c := &controller{client: d.Client, dynamic: d.Dynamic, secrets: informer.Lister(), recorder: d.Recorder, log: d.Logger, clock: d.Clock}
	c.queue = controllers.NewQueue[source](d, "webhook_trust", 1)
	err := controllers.Subscribe(d, informer.Informer(), controllers.OnAny(func(s *corev1.Secret) {
		for _, src := range c.sharers.of(controllers.Key(s)) {
			c.queue.Add(src)
		}
	}))
	if err != nil {
		return nil, err
	}
	for _, kind := range kinds() {
		err := d.SubscribeLate(d.MetadataInformers.ForResource(kind).Informer(), func(o metav1.Object) {
			src := source{kind, o.GetName()}
			if o.GetAnnotations()[Annotation] == Managed || c.sharers.has(src) {
				c.queue.Add(src)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), nil
}

// sync handles one configuration: first its Secrets, then its CA bundles.
func (c *controller) sync(ctx context.Context, src source) error {
	client := c.dynamic.Resource(src.GroupVersionResource)
	obj, err := client.Get(ctx, src.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && obj.GetAnnotations()[Annotation] != Managed {
		c.sharers.set(src, nil)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s %s: %w", src.Resource, src.name, err)
	}
	targets := targetsOf(obj)
	wants := map[types.NamespacedName][]string{} // hosts by Secret
	for _, t := range targets {
		key := t.secret(obj.GetAnnotations()[SecretAnnotation])
		wants[key] = append(wants[key], t.hosts()...)
	}
	c.sharers.set(src, wants)
	trusted := map[types.NamespacedName][]byte{}
	var errs []error
	for _, key := range slices.SortedFunc(maps.Keys(wants), func(a, b types.NamespacedName) int {
		return slices.Compare([]string{a.Namespace, a.Name}, []string{b.Namespace, b.Name})
	}) {
		bundle, again, err := c.keep(ctx, key, c.sharers.hosts(key))
		switch {
		case errors.Is(err, errForeign):
			c.recorder.Eventf(obj, corev1.EventTypeWarning, "SecretNotManaged",
				"Secret %s exists without the annotation %s: %s; the controller does not change it", key, Annotation, Managed)
		case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // it is not needed any more
		case err != nil:
			errs = append(errs, err)
		default:
			trusted[key] = bundle
			c.queue.AddAfter(src, again.Sub(c.clock.Now()))
		}
	}
	changed := false
	for _, t := range targets {
		if bundle := trusted[t.secret(obj.GetAnnotations()[SecretAnnotation])]; bundle != nil && t.trust(bundle) {
			changed = true
		}
	}
	if changed {
		if _, err := client.Update(ctx, obj, metav1.UpdateOptions{FieldManager: Name}); err != nil {
			errs = append(errs, fmt.Errorf("write %s %s: %w", src.Resource, src.name, err))
		}
	}
	return errors.Join(errs...)
}

// errForeign is the error of a Secret that the controller does not manage.
var errForeign = errors.New("secret is not managed")

// The keys of a Secret.
const (
	nextCert, nextKey, trustedKey = "next.crt", "next.key", "ca.crt"
)

// keep creates or updates a Secret. It returns the trusted certificates and when to sync again.
func (c *controller) keep(ctx context.Context, key types.NamespacedName, hosts []string) ([]byte, time.Time, error) {
	have, err := c.secrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		have, err = nil, nil
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read secret: %w", err)
	}
	var b trust.Bundle
	if have != nil {
		if have.Annotations[Annotation] != Managed {
			return nil, time.Time{}, errForeign
		}
		b = trust.Read(have.Data[corev1.TLSCertKey], have.Data[corev1.TLSPrivateKeyKey], have.Data[nextCert], have.Data[nextKey],
			have.Data[trustedKey])
	}
	times := trust.Default()
	b, again, err := b.Turn(hosts, c.clock.Now(), times, func() (*trust.Pair, error) {
		return trust.Issue("mortise trust of "+key.String(), hosts, c.clock.Now(), times.Life)
	})
	if err != nil {
		return nil, time.Time{}, err
	}
	data := map[string][]byte{corev1.TLSCertKey: b.Current.Cert, corev1.TLSPrivateKeyKey: b.Current.Key, trustedKey: b.Trusted}
	if b.Next != nil {
		data[nextCert], data[nextKey] = b.Next.Cert, b.Next.Key
	}
	client := c.client.CoreV1().Secrets(key.Namespace)
	switch {
	case have == nil:
		_, err = client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: key.Name, Namespace: key.Namespace, Annotations: map[string]string{Annotation: Managed}},
			Type:       corev1.SecretTypeTLS, Data: data,
		}, metav1.CreateOptions{FieldManager: Name})
	case !same(have.Data, data):
		have = have.DeepCopy()
		for _, k := range []string{nextCert, nextKey} {
			delete(have.Data, k)
		}
		if have.Data == nil {
			have.Data = map[string][]byte{}
		}
		maps.Copy(have.Data, data)
		_, err = client.Update(ctx, have, metav1.UpdateOptions{FieldManager: Name})
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("write secret %s: %w", key, err)
	}
	return b.Trusted, again, nil
}

// same reports whether the managed keys of a Secret are up to date.
func same(have, want map[string][]byte) bool {
	for _, k := range []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey, trustedKey, nextCert, nextKey} {
		if string(have[k]) != string(want[k]) {
			return false
		}
	}
	return true
}
