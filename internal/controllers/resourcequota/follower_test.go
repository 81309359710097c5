// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	discoveryfake "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
)

var crates = schema.GroupVersionResource{Group: "quota.example.com", Version: "v1", Resource: "crates"}

// mapper knows what it was told, and counts how often it was to forget that.
type mapper struct {
	*meta.DefaultRESTMapper
	resets int
}

func (m *mapper) Reset() { m.resets++ }

// slow is a client whose first list is answered once it is released. The fake's reactors are called one after the other.
type slow struct {
	metadata.Interface
	lists   atomic.Int32
	release chan struct{}
}

func (s *slow) Resource(r schema.GroupVersionResource) metadata.Getter {
	return &slowly{s.Interface.Resource(r), s}
}

type slowly struct {
	metadata.Getter
	s *slow
}

func (g *slowly) List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	if g.s.lists.Add(1) == 1 {
		<-g.s.release
	}
	return g.Getter.List(ctx, o)
}

func (*slow) IsWatchListSemanticsUnSupported() bool { return true }

// deps are those of a cluster that serves crates, which objects has.
func deps(objects metadata.Interface) (*controllers.Deps, *mapper) {
	m := &mapper{DefaultRESTMapper: meta.NewDefaultRESTMapper(nil)}
	m.Add(crates.GroupVersion().WithKind("Crate"), meta.RESTScopeNamespace)
	served := &metav1.APIResourceList{GroupVersion: crates.GroupVersion().String(), APIResources: []metav1.APIResource{
		{Name: crates.Resource, Kind: "Crate", Namespaced: true, Verbs: metav1.Verbs{"create", "delete", "list", "watch"}},
	}}
	return &controllers.Deps{
		Clock: clock.RealClock{}, Informers: informers.NewSharedInformerFactory(fake.NewClientset(), 0), RESTMapper: m, Metadata: objects,
		Discovery: &discoveryfake.FakeDiscovery{Fake: &k8stesting.Fake{Resources: []*metav1.APIResourceList{served}}},
	}, m
}

func metadataOf(t *testing.T) *metadatafake.FakeMetadataClient {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := metadatafake.NewSimpleMetadataClient(scheme)
	client.PrependReactor("list", "*", func(k8stesting.Action) (bool, runtime.Object, error) { return true, &metav1.List{}, nil })
	return client
}

// TestForgottenWhileListed: a definition changes while its objects are listed for the first time. A count that waits for that list
// waits for the next one then, not until it runs out of patience.
func TestForgottenWhileListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := &slow{Interface: metadataOf(t), release: make(chan struct{})}
		d, _ := deps(objects)
		f := newFollower(d, func(schema.GroupResource, string) {})
		ctx, cancel := context.WithCancel(t.Context())
		var group errgroup.Group
		f.begin(ctx, &group)

		followed := make(chan error, 1)
		begun := d.Clock.Now()
		go func() {
			_, ok, err := f.follow(ctx, crates.GroupResource())
			if err == nil && !ok {
				t.Error("crates are not served")
			}
			followed <- err
		}()
		synctest.Wait()
		f.forget(crates.Group)
		if err := <-followed; err != nil {
			t.Errorf("crates are not followed: %v", err)
		}
		if took := d.Clock.Since(begun); took != 0 {
			t.Errorf("the count waited %s", took)
		}
		close(objects.release)
		cancel()
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestChangedBeforeQuota: a group changes that no quota names yet. The quota that comes next finds what is served by then.
func TestChangedBeforeQuota(t *testing.T) {
	d, m := deps(metadataOf(t))
	c := &controller{
		quotas:   listers.NewResourceQuotaLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})),
		follower: newFollower(d, func(schema.GroupResource, string) {}),
	}
	if err := c.changed(t.Context(), crates.Group); err != nil {
		t.Fatal(err)
	}
	if m.resets != 1 {
		t.Errorf("what was served before was forgotten %d times, want once", m.resets)
	}
}
