// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// backend stores definitions and objects in memory, and notifies the registry of each change, as the server does.
type backend struct {
	resource.Backend
	r       *Registry
	defs    map[string]*v1.CustomResourceDefinition
	objects map[string]*unstructured.Unstructured
	gone    chan string // names of removed definitions
}

func newBackend(o Options) *backend {
	return &backend{r: NewRegistry(o), defs: map[string]*v1.CustomResourceDefinition{}, objects: map[string]*unstructured.Unstructured{},
		gone: make(chan string, 8)}
}

func (b *backend) put(t *testing.T, d *v1.CustomResourceDefinition) {
	t.Helper()
	d = d.DeepCopy()
	if d.UID == "" {
		d.UID = types.UID(d.Name)
	}
	b.defs[d.Name] = d
	if err := b.r.Apply(context.Background(), b, &feed.Change{Name: d.Name, Object: d}); err != nil {
		t.Fatal(err)
	}
}

func (b *backend) Update(ctx context.Context, gr schema.GroupResource, _, name string, _ bool,
	change func(resource.Object) error) (resource.Object, error) {
	d, ok := b.defs[name]
	if !ok || gr != Resource {
		return nil, apierrors.NewNotFound(gr, name)
	}
	d = d.DeepCopy()
	if err := change(d); err != nil {
		return nil, err
	}
	if !d.DeletionTimestamp.IsZero() && len(d.Finalizers) == 0 {
		delete(b.defs, name)
		err := b.r.Apply(ctx, b, &feed.Change{Name: name})
		b.gone <- name
		return d, err
	}
	b.defs[name] = d
	return d, b.r.Apply(ctx, b, &feed.Change{Name: name, Object: d})
}

func (b *backend) List(context.Context, schema.GroupResource, string) ([]resource.Object, error) {
	var out []resource.Object
	for _, o := range b.objects {
		out = append(out, o)
	}
	return out, nil
}

func (b *backend) Delete(ctx context.Context, gr schema.GroupResource, _, name string, _ *metav1.DeleteOptions) error {
	o, ok := b.objects[name]
	if !ok {
		return apierrors.NewNotFound(gr, name)
	}
	if len(o.GetFinalizers()) > 0 {
		now := metav1.Now()
		o.SetDeletionTimestamp(&now)
		return nil
	}
	delete(b.objects, name)
	for _, d := range b.r.Descriptors() {
		if d.GroupResource() == gr && d.Strategy.Allocate != nil {
			done, err := d.Strategy.Allocate(ctx, b, nil, o, false)
			if err != nil {
				return err
			}
			done(true)
		}
	}
	return nil
}

func TestServedWhenApplyReturns(t *testing.T) {
	var added, removed int
	b := newBackend(Options{Changed: func(a, r []*resource.Descriptor) { added += len(a); removed += len(r) }})
	b.put(t, definition(t, "gadget"))
	list := b.r.Descriptors()
	if len(list) != 1 || list[0].Kind != "Gadget" || added != 1 || removed != 0 {
		t.Fatalf("%d descriptors, %d added, %d removed", len(list), added, removed)
	}
	d := b.defs["gadgets.dlg.example.com"]
	if !apihelpers.IsCRDConditionTrue(d, v1.Established) || !apihelpers.IsCRDConditionTrue(d, v1.NamesAccepted) {
		t.Errorf("conditions %v", d.Status.Conditions)
	}
	if diff := cmp.Diff(d.Spec.Names, d.Status.AcceptedNames); diff != "" {
		t.Error(diff)
	}
	owner := d.ManagedFields[0]
	want := `{"f:status":{"f:acceptedNames":{"f:categories":{},"f:kind":{},"f:listKind":{},"f:plural":{},"f:shortNames":{},"f:singular":{}},` +
		`"f:conditions":{"k:{\"type\":\"Established\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}},` +
		`"k:{\"type\":\"NamesAccepted\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`
	if diff := cmp.Diff(want, string(owner.FieldsV1.Raw)); diff != "" || owner.Manager != "kube-apiserver" || owner.Subresource != "status" {
		t.Errorf("%v: %s", owner, diff)
	}
	labelled := d.DeepCopy()
	labelled.Labels = map[string]string{"a": "b"}
	b.put(t, labelled)
	if b.r.Descriptors()[0] != list[0] {
		t.Error("a label made a new descriptor")
	}
	changed := labelled.DeepCopy()
	changed.Generation++
	b.put(t, changed)
	if b.r.Descriptors()[0] == list[0] || added != 2 || removed != 1 {
		t.Errorf("a new schema: %d added, %d removed", added, removed)
	}
}

func TestNamesConflict(t *testing.T) {
	b := newBackend(Options{})
	b.put(t, definition(t, "gadget"))
	rival := definition(t, "gadget")
	rival.Name, rival.UID = "widgets.dlg.example.com", ""
	rival.Spec.Names.Plural, rival.Spec.Names.Singular, rival.Spec.Names.ListKind = "widgets", "widget", "WidgetList"
	b.put(t, rival)
	got := apihelpers.FindCRDCondition(b.defs[rival.Name], v1.NamesAccepted)
	if got == nil || got.Status != v1.ConditionFalse || got.Reason != "KindConflict" || got.Message != `"Gadget" is already in use` {
		t.Errorf("condition %+v", got)
	}
	if n := len(b.r.Descriptors()); n != 1 {
		t.Errorf("%d descriptors", n)
	}
	// When the first definition is deleted, its names are free.
	delete(b.defs, "gadgets.dlg.example.com")
	if err := b.r.Apply(context.Background(), b, &feed.Change{Name: "gadgets.dlg.example.com"}); err != nil {
		t.Fatal(err)
	}
	if !apihelpers.IsCRDConditionTrue(b.defs[rival.Name], v1.Established) {
		t.Errorf("conditions %v", b.defs[rival.Name].Status.Conditions)
	}
	if list := b.r.Descriptors(); len(list) != 1 || list[0].Resource != "widgets" {
		t.Errorf("descriptors %v", list)
	}
}

func TestBuiltInIsNotServed(t *testing.T) {
	b := newBackend(Options{BuiltIn: func(gr schema.GroupResource) bool { return gr.Resource == "gadgets" }})
	b.put(t, definition(t, "gadget"))
	if n := len(b.r.Descriptors()); n != 0 {
		t.Errorf("%d descriptors", n)
	}
}

func TestCleanUp(t *testing.T) {
	b := newBackend(Options{})
	b.put(t, definition(t, "gadget"))
	for _, name := range []string{"a", "b", "held"} {
		u := &unstructured.Unstructured{Object: map[string]any{}}
		u.SetName(name)
		b.objects[name] = u
	}
	b.objects["held"].SetFinalizers([]string{"x/y"})
	def := b.defs["gadgets.dlg.example.com"].DeepCopy()
	strategy := Definitions().Strategy
	if diff := cmp.Diff([]string{v1.CustomResourceCleanupFinalizer}, strategy.Finalizers(def)); diff != "" {
		t.Error(diff)
	}
	now := metav1.Now()
	def.DeletionTimestamp = &now
	strategy.BeginDelete(def)
	if strategy.Finalizers(def) != nil {
		t.Error("once the deletion has begun, metadata.finalizers holds it back")
	}
	b.put(t, def)
	kind := b.r.Descriptors()[0]
	if err := kind.Strategy.Authorize(context.Background(), b.objects["held"], nil); !apierrors.IsForbidden(err) {
		t.Errorf("create: %v", err)
	}
	if err := kind.Strategy.Authorize(context.Background(), b.objects["held"], b.objects["held"]); err != nil {
		t.Errorf("update: %v", err)
	}
	if slices.Contains(kind.Announced, "create") || slices.Contains(kind.Announced, "patch") || !slices.Contains(kind.Announced, "delete") {
		t.Errorf("discovery tells of %v", kind.Announced)
	}
	ctx := context.Background()
	for _, name := range b.r.takePending() {
		if err := b.r.cleanUp(ctx, b, name); err != nil {
			t.Fatal(err)
		}
	}
	if len(b.objects) != 1 || b.defs[def.Name] == nil {
		t.Fatalf("%d objects, definition %v", len(b.objects), b.defs[def.Name])
	}
	if c := apihelpers.FindCRDCondition(b.defs[def.Name], v1.Terminating); c == nil || c.Reason != "InstanceDeletionInProgress" {
		t.Errorf("condition %v", c)
	}
	// The finalizer is removed, then the object, and with it the definition.
	b.objects["held"].SetFinalizers(nil)
	if err := b.Delete(ctx, b.r.Descriptors()[0].GroupResource(), "", "held", nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- b.r.Run(ctx, b) }()
	<-b.gone
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(b.r.Descriptors()) != 0 || b.defs[def.Name] != nil {
		t.Error("still there")
	}
}

func TestDefinitionStrategy(t *testing.T) {
	kind := Definitions()
	ctx := context.Background()
	d := definition(t, "gadget")
	if !slices.Equal(d.Status.StoredVersions, []string{"v1"}) || d.Generation != 1 {
		t.Errorf("created with %v, generation %d", d.Status.StoredVersions, d.Generation)
	}
	d.ResourceVersion = "3"
	scoped := d.DeepCopy()
	scoped.Spec.Scope = v1.ClusterScoped
	errs := kind.Strategy.ValidateUpdate(ctx, scoped, withStatus(d, accept(d, taken{}, metav1.Now().Time)))
	if len(errs) != 1 || errs[0].Field != "spec.scope" {
		t.Errorf("scope: %v", errs)
	}
	odd := d.DeepCopy()
	spec := odd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	when := spec.Properties["when"]
	when.Format = "odd"
	spec.Properties["when"] = when
	if diff := cmp.Diff([]string{`unrecognized format "odd"`}, kind.Strategy.Warn(ctx, odd, d)); diff != "" {
		t.Error(diff)
	}
	b, err := kind.Codec.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := kind.Codec.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.Spec, got.(*v1.CustomResourceDefinition).Spec); diff != "" {
		t.Error(diff)
	}
	if _, err := Compile(&v1.CustomResourceDefinition{}, nil); err == nil || errors.Unwrap(err) == nil {
		t.Errorf("compiling nothing: %v", err)
	}
}
