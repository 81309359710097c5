// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/resource"
)

// TestUpdates updates each object that was created on record: without a change through every path, which must be
// valid, raise no generation and leave the old object as it was; and with a change of the metadata that no kind allows.
func TestUpdates(t *testing.T) {
	kinds := map[schema.GroupResource]*resource.Descriptor{}
	for _, d := range All(Options{}) {
		kinds[d.GroupResource()] = d
	}
	ctx := context.Background()
	done := map[schema.GroupResource]bool{}
	for _, a := range answers(t) {
		gvr, namespace := split(a.Path)
		d := kinds[gvr.GroupResource()]
		if a.Status != 201 || d == nil || d.Create != nil || done[gvr.GroupResource()] || gvr.Resource == "pods" {
			continue
		}
		done[gvr.GroupResource()] = true
		t.Run(a.ID, func(t *testing.T) {
			old, err := create(t, d, gvr.Version, namespace, a.Body, false)
			if err != nil {
				t.Fatal(err)
			}
			if v := d.Version(gvr.Version); v.ToHub != nil {
				if old, err = v.ToHub(old); err != nil {
					t.Fatal(err)
				}
			}
			old.SetResourceVersion("7")
			data, err := d.Codec.Encode(old)
			if err != nil {
				t.Fatal(err)
			}
			back, err := d.Codec.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			back.GetObjectKind().SetGroupVersionKind(old.GetObjectKind().GroupVersionKind())
			if diff := cmp.Diff(plain(t, old), plain(t, back)); diff != "" && !kind.Same(old, back) { // times lose their fractions
				t.Errorf("stored and read back:\n%s", diff)
			}
			paths := map[string]*resource.Strategy{"": &d.Strategy}
			for _, s := range d.Subresources {
				if s.Strategy != nil {
					paths[s.Name] = s.Strategy
				}
			}
			for path, strategy := range paths {
				before := old.DeepCopyObject()
				obj := old.DeepCopyObject().(resource.Object)
				if strategy.PrepareUpdate != nil {
					strategy.PrepareUpdate(ctx, obj, old)
				}
				if errs := strategy.ValidateUpdate(ctx, obj, old); len(errs) > 0 && path != "approval" {
					t.Errorf("%q: an update without a change is refused: %v", path, errs)
				}
				if obj.GetGeneration() != old.GetGeneration() {
					t.Errorf("%q: generation %d became %d without a change", path, old.GetGeneration(), obj.GetGeneration())
				}
				if diff := cmp.Diff(plain(t, before), plain(t, old)); diff != "" {
					t.Errorf("%q: the old object changed:\n%s", path, diff)
				}
				if path != "" {
					continue
				}
				if strategy.Warn != nil {
					strategy.Warn(ctx, obj, old)
				}
			}
		})
	}
	if len(done) < 35 {
		t.Errorf("only %d kinds were updated", len(done))
	}
}
