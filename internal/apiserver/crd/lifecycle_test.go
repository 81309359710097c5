// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

func reason(d *v1.CustomResourceDefinition, t v1.CustomResourceDefinitionConditionType) string {
	if c := apihelpers.FindCRDCondition(d, t); c != nil {
		return string(c.Status) + " " + c.Reason
	}
	return ""
}

// Conditions that others changed stay as long as the definition has its requested names.
func TestConditionsOfOthersStay(t *testing.T) {
	b := newBackend(Options{})
	b.put(t, definition(t, "gadget"))
	d := b.defs["gadgets.dlg.example.com"].DeepCopy()
	d.Status.Conditions = []v1.CustomResourceDefinitionCondition{{Type: "Mine", Status: v1.ConditionTrue}}
	b.put(t, d)
	if d = b.defs[d.Name].DeepCopy(); len(d.Status.Conditions) != 1 || len(b.r.Descriptors()) != 0 {
		t.Errorf("conditions %v, %d kinds", d.Status.Conditions, len(b.r.Descriptors()))
	}
	d.Spec.Names.ShortNames = []string{"other"}
	d.Generation++
	b.put(t, d)
	if d = b.defs[d.Name]; reason(d, v1.Established) != "True InitialNamesAccepted" || len(d.Status.Conditions) != 3 ||
		len(b.r.Descriptors()) != 1 {
		t.Errorf("conditions %v, %d kinds", d.Status.Conditions, len(b.r.Descriptors()))
	}
}

// A definition whose webhook cannot be trusted has its names, but is not established, and its kind is not served.
func TestInvalidAuthority(t *testing.T) {
	for bundle, usable := range map[string]bool{"no certificate": false, "-----BEGIN CERTIFICATE-----\n": false, " ": true} {
		b := newBackend(Options{})
		d := definition(t, "gadget")
		url := "https://converter.example.com"
		d.Spec.Conversion = &v1.CustomResourceConversion{Strategy: v1.WebhookConverter, Webhook: &v1.WebhookConversion{
			ClientConfig: &v1.WebhookClientConfig{URL: &url, CABundle: []byte(bundle)}, ConversionReviewVersions: []string{"v1"},
		}}
		b.put(t, d)
		d = b.defs[d.Name].DeepCopy()
		if reason(d, v1.NamesAccepted) != "True NoConflicts" || reason(d, v1.Established) != "False InvalidCABundle" {
			t.Errorf("%q: conditions %v", bundle, d.Status.Conditions)
		}
		kind := b.r.Descriptors()[0]
		if !kind.Hidden || (kind.Unusable == nil) != usable {
			t.Errorf("%q: hidden %v, unusable %v", bundle, kind.Hidden, kind.Unusable)
		}
		d.Spec.Conversion = &v1.CustomResourceConversion{Strategy: v1.NoneConverter}
		d.Generation++
		b.put(t, d)
		if kind = b.r.Descriptors()[0]; reason(b.defs[d.Name], v1.Established) != "True InitialNamesAccepted" || kind.Hidden ||
			kind.Unusable != nil {
			t.Errorf("%q mended: %v, hidden %v, unusable %v", bundle, b.defs[d.Name].Status.Conditions, kind.Hidden, kind.Unusable)
		}
	}
}

// The entry of the server has the time of its last write, and entries are in the order that managed fields have.
func TestOwnedSince(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := newBackend(Options{Now: func() time.Time { return now }})
	d := definition(t, "gadget")
	later := metav1.NewTime(now.Add(time.Minute))
	d.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "author", Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: "apiextensions.k8s.io/v1", Time: &later}}
	b.put(t, d)
	if m := b.defs[d.Name].ManagedFields; len(m) != 2 || m[0].Manager != "kube-apiserver" || !m[0].Time.Time.Equal(now) ||
		m[1].Manager != "author" {
		t.Errorf("created: %v", m)
	}
	now = now.Add(time.Hour)
	d = b.defs[d.Name].DeepCopy()
	d.Spec.Names.Categories = nil
	d.Generation++
	b.put(t, d)
	if m := b.defs[d.Name].ManagedFields; len(m) != 2 || m[1].Manager != "kube-apiserver" || !m[1].Time.Time.Equal(now) {
		t.Errorf("changed: %v", m)
	}
	d = b.defs[d.Name].DeepCopy()
	deleted := metav1.NewTime(now)
	d.DeletionTimestamp = &deleted
	d.Finalizers = []string{"author/holds"}
	Definitions().Strategy.BeginDelete(d)
	b.put(t, d)
	if err := b.r.cleanUp(t.Context(), b, d.Name); err != nil {
		t.Fatal(err)
	}
	raw := string(b.defs[d.Name].ManagedFields[1].FieldsV1.GetRawBytes())
	if want := `"k:{\"type\":\"Terminating\"}":{"f:message":{},"f:reason":{},"f:status":{}}`; !strings.Contains(raw, want) {
		t.Errorf("deleted: %s", raw)
	}
}

// unlisted is a backend whose objects cannot be read, as with an unavailable conversion webhook.
type unlisted struct {
	*backend
	broken bool
}

func (u *unlisted) List(ctx context.Context, gr schema.GroupResource, ns string) ([]resource.Object, error) {
	if u.broken {
		u.broken = false
		return nil, errors.New("no converter")
	}
	return u.backend.List(ctx, gr, ns)
}

// A failed clean-up appears in the condition, and is retried without a request.
func TestCleanUpGoesOn(t *testing.T) {
	b := &unlisted{backend: newBackend(Options{}), broken: true}
	b.put(t, definition(t, "gadget"))
	b.objects["a"] = &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}
	d := b.defs["gadgets.dlg.example.com"].DeepCopy()
	now := metav1.Now()
	d.DeletionTimestamp = &now
	Definitions().Strategy.BeginDelete(d)
	b.put(t, d)
	b.r.takePending()
	if err := b.r.cleanUp(context.Background(), b, d.Name); err == nil {
		t.Fatal("no error")
	}
	c := apihelpers.FindCRDCondition(b.defs[d.Name], v1.Terminating)
	if c.Status != v1.ConditionTrue || c.Reason != "InstanceDeletionFailed" || c.Message != "could not list instances: no converter" {
		t.Errorf("condition %v", c)
	}
	b.broken = true
	b.r.mu.Lock()
	b.r.clean(d.Name)
	b.r.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.r.Run(ctx, b) }()
	<-b.gone
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(b.objects) != 0 {
		t.Errorf("%d objects", len(b.objects))
	}
}
