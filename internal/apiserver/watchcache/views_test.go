// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// TestObjectsAreDroppedAtRest keeps a cached object while lists begin or objects are added, and drops it afterwards.
func TestObjectsAreDroppedAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &resource.Descriptor{
			Resource: "configmaps", Kind: "ConfigMap", Namespaced: true, Prefix: "configmaps", Storage: "v1", Codec: codec{},
			Versions: []resource.Version{{Name: "v1", New: func() resource.Object { return &corev1.ConfigMap{} }}},
		}
		k := NewKind(d, nil, NewViews(restShare<<10), nil) // an object is more than few bytes of that
		record := func(name string) *store.Record {
			return &store.Record{Key: k.Key("ns", name), Value: []byte(`{"metadata":{"name":"` + name + `"}}`), Revision: 1}
		}
		first := record("a")
		if _, err := k.Cached(first); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			time.Sleep(restAfter * 3 / 4)
			k.Listing()
			time.Sleep(restAfter * 3 / 4)
			if _, err := k.Cached(record("b")); err != nil {
				t.Fatal(err)
			}
			if k.view(first) == nil {
				t.Fatal("the object was dropped while there was work")
			}
		}
		for range 2 { // also what is cached after a rest
			time.Sleep(2*restAfter + time.Millisecond)
			synctest.Wait()
			if k.view(first) != nil {
				t.Error("the object is cached although nothing happens")
			}
			if _, err := k.Cached(first); err != nil {
				t.Fatal(err)
			}
		}
		k.views.mu.Lock()
		k.views.max = 1 << 30
		k.views.mu.Unlock()
		for range 3 { // few bytes of that
			time.Sleep(restAfter)
			if _, err := k.Cached(record("lease")); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if k.view(first) != nil {
			t.Error("the object is cached although little happens")
		}
		time.Sleep(2*restAfter + time.Millisecond)
		synctest.Wait()
		if _, err := k.Cached(first); err != nil {
			t.Fatal(err)
		}
		if k.views.total != k.cachedSize(first) || len(k.views.queue) != 1 {
			t.Errorf("%d bytes in %d entries are counted", k.views.total, len(k.views.queue))
		}
	})
}

// TestAlikeKindsShareObjects: the servers of a cluster and its forks have the same records. A built-in kind of each decodes a record to the
// same object, so that only one of them does; kinds of definitions, whose schemas may differ, decode it each.
func TestAlikeKindsShareObjects(t *testing.T) {
	f := newFixture(t, 1<<20)
	r := f.put(t, "a")
	first, err := f.Cached(r)
	if err != nil {
		t.Fatal(err)
	}
	other := NewKind(f.Descriptor, f.store, f.views, nil)
	second, err := other.Cached(r)
	if err != nil || second.Hub != first.Hub || second.Kind != other {
		t.Errorf("the same kind of another server decodes the record again: %v", err)
	}
	defined := NewKind(f.Descriptor, f.store, f.views, nil)
	defined.Unstructured = true
	if third, err := defined.Cached(r); err != nil || third.Hub == first.Hub {
		t.Errorf("a kind of a definition takes another kind's object: %v", err)
	}
}
