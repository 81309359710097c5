// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/managedfields"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// Bootstrap objects have fixed managed fields. This compares them with the field manager's.
func TestObjectsOfStartOwnTheirFields(t *testing.T) {
	kindsOf := map[schema.GroupResource]*resource.Descriptor{}
	for _, d := range kinds.All(kinds.Options{}) {
		kindsOf[d.GroupResource()] = d
	}
	fields := managedfields.New(nil)
	objects := startObjects()
	if len(objects) < 150 {
		t.Fatalf("%d objects of a start", len(objects))
	}
	for _, o := range objects {
		d := kindsOf[o.Resource]
		obj := o.Object.DeepCopyObject().(resource.Object)
		d.Hub().Default(obj) // the creator owns the defaults too
		last := o.Fields[len(o.Fields)-1]
		asked, err := fields.Update(d, d.Storage, "", nil, obj, last.Manager)
		if err != nil {
			t.Fatal(err)
		}
		want := asked.GetManagedFields()
		if len(want) != 1 {
			t.Fatalf("%s %s: %d entries", o.Resource, o.Object.GetName(), len(want))
		}
		if diff := cmp.Diff(tree(t, want[0].FieldsV1), tree(t, last.FieldsV1)); diff != "" {
			t.Errorf("%s %s: fields (-manager +start):\n%s", o.Resource, o.Object.GetName(), diff)
		}
		if want[0].APIVersion != last.APIVersion || want[0].Operation != last.Operation {
			t.Errorf("%s %s: %s %s", o.Resource, o.Object.GetName(), last.Operation, last.APIVersion)
		}
	}
}

// CreateMissing creates the missing objects in one commit, and returns the existing ones.
func TestPlantOnce(t *testing.T) {
	s := store.New(memory.Open(memory.Options{}))
	srv, err := apiserver.New(apiserver.Options{Store: s, Kinds: kinds.All(kinds.Options{})})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var ps []registry.BootstrapObject
	for _, o := range startObjects() {
		ps = append(ps, registry.BootstrapObject{Resource: o.Resource, Object: o.Object, Finish: o.Finish, Fields: o.Fields})
	}
	before := s.Revision()
	found, err := srv.CreateMissing(ctx, ps[1:])
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Revision() - before; got != 1 {
		t.Errorf("%d revisions for all", got)
	}
	for _, obj := range found {
		if obj != nil {
			t.Fatalf("found %s in an empty store", obj.GetName())
		}
	}
	found, err = srv.CreateMissing(ctx, ps)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Revision() - before; got != 2 {
		t.Errorf("%d revisions after one more", got)
	}
	for i, obj := range found {
		if (obj == nil) != (i == 0) {
			t.Errorf("%s: found %v", ps[i].Object.GetName(), obj != nil)
		}
		if obj != nil && (obj.GetUID() == "" || obj.GetManagedFields()[0].Time.IsZero()) {
			t.Errorf("%s: no uid, or no time", obj.GetName())
		}
	}
}

func startObjects() []bootstrap.Object {
	return bootstrap.Objects(bootstrap.Options{
		ServiceCIDR: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, Now: time.Unix(1e9, 0),
		Served: []bootstrap.GroupVersion{{GroupVersion: schema.GroupVersion{Version: "v1"}, GroupPriority: 3, VersionPriority: 4},
			{GroupVersion: schema.GroupVersion{Group: "apps", Version: "v1"}, GroupPriority: 5, VersionPriority: 6}},
		Authentication: map[string]string{"client-ca-file": "c"}, Identity: "apiserver-x", Hostname: "h", AdvertiseAddress: "192.0.2.1:6443",
	})
}

func tree(t *testing.T, f *metav1.FieldsV1) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal(f.GetRawBytes(), &out); err != nil {
		t.Fatal(err)
	}
	return out
}
