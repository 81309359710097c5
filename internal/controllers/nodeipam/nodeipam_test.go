// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Metrics: metrics, Cluster: controllers.Cluster{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/23")},
	}}, Controller())
	want := []string{
		"cidrset_allocation_tries_per_request{clusterCIDR=10.244.0.0/23} 3",
		"cidrset_cidrs_allocations_total{clusterCIDR=10.244.0.0/23} 3",
		"cidrset_cidrs_releases_total{clusterCIDR=10.244.0.0/23} 1",
		"cidrset_usage_cidrs{clusterCIDR=10.244.0.0/23} 1",
		"cirdset_max_cidrs{clusterCIDR=10.244.0.0/23} 2",
	}
	if diff := cmp.Diff(want, controllertest.Counted(t, counted, "node_ipam_controller_")); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// TestDualStack: a node gets a subnet of each range, as long as the masks say.
func TestDualStack(t *testing.T) {
	controllertest.Run(t, "testdata/dual/*.txtar", controllers.Options{Cluster: controllers.Cluster{
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:1::/60")},
	}}, controllertest.Configured(t, Controller(), "node-cidr-mask-size-ipv4=26", "node-cidr-mask-size-ipv6=62"))
}

func TestPool(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("fd00:1::/60"), 64)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Prefix]bool{}
	for i := range 16 {
		s, ok := p.take("n")
		if !ok || seen[s] || p.index(s) != i || !p.cluster.Overlaps(s) {
			t.Fatalf("take %d: %v, %v", i, s, ok)
		}
		seen[s] = true
	}
	if s, ok := p.take("n"); ok {
		t.Fatalf("took %v from a full pool", s)
	}
	p.release(netip.MustParsePrefix("fd00:1:0:5::/64"), "other")
	if _, ok := p.take("n"); ok {
		t.Fatal("released what is another's")
	}
	p.release(netip.MustParsePrefix("fd00:1:0:5::/64"), "n")
	if s, ok := p.take("m"); !ok || s.String() != "fd00:1:0:5::/64" {
		t.Fatalf("took %v, %v after a release", s, ok)
	}
	if _, err := newPool(netip.MustParsePrefix("10.0.0.0/24"), 16); err == nil {
		t.Fatal("a mask wider than the range was accepted")
	}
}

// TestStaleNode: a node that has moved on since the cache saw it is left for its newer state, and costs no subnet.
func TestStaleNode(t *testing.T) {
	p, err := newPool(netip.MustParsePrefix("10.244.0.0/16"), 24)
	if err != nil {
		t.Fatal(err)
	}
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := indexer.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "7"}}); err != nil {
		t.Fatal(err)
	}
	client := fake.NewClientset()
	client.PrependReactor("patch", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if patch := string(a.(clienttesting.PatchAction).GetPatch()); !strings.Contains(patch, `"resourceVersion":"7"`) {
			t.Errorf("the patch %s has no precondition", patch)
		}
		return true, nil, apierrors.NewConflict(corev1.Resource("nodes"), "n", nil)
	})
	counts, err := newMeters(&controllers.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	c := &controller{meters: counts, client: client, nodes: corelisters.NewNodeLister(indexer), pools: []*pool{p}}
	if err := c.sync(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	if len(p.taken) != 0 {
		t.Errorf("after the conflict %v is taken, want nothing", p.taken)
	}
}

// about keeps what events were about.
type about struct {
	record.EventRecorder
	objects []runtime.Object
}

func (a *about) Eventf(o runtime.Object, _, _, _ string, _ ...any) { a.objects = append(a.objects, o) }

// TestExhausted: what is said of a node that gets nothing is said of that very node.
func TestExhausted(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := indexer.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}); err != nil {
		t.Fatal(err)
	}
	p, err := newPool(netip.MustParsePrefix("10.244.0.0/24"), 24)
	if err != nil {
		t.Fatal(err)
	}
	p.occupy(netip.MustParsePrefix("10.244.0.0/24"), "other")
	counts, err := newMeters(&controllers.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	said := &about{}
	c := &controller{meters: counts, recorder: said, nodes: corelisters.NewNodeLister(indexer), pools: []*pool{p}}
	if err := c.sync(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	want := []runtime.Object{&corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: "n", UID: "u"}}
	if diff := cmp.Diff(want, said.objects); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
