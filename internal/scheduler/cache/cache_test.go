// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cache_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

func node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{
			{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}}}},
	}}
}

// see is the snapshot brought up to date: nodes in their order, with the cores requested of each.
func see(c *cache.Cache, s *cache.Snapshot) (names []string, cores []int64) {
	c.Update(s)
	for _, n := range s.Nodes() {
		names = append(names, n.Node().Name)
		cores = append(cores, n.GetRequested().GetMilliCPU()/1000)
	}
	return names, cores
}

func TestZonesTakeTurns(t *testing.T) {
	c, s := cache.New(), cache.NewSnapshot()
	for _, n := range []*corev1.Node{node("a1", "a"), node("a2", "a"), node("a3", "a"), node("b1", "b")} {
		c.SetNode(n)
	}
	names, _ := see(c, s)
	if d := cmp.Diff([]string{"a1", "b1", "a2", "a3"}, names); d != "" {
		t.Error(d)
	}
}

func TestAssumedPodsAreConfirmedOrForgotten(t *testing.T) {
	c, s := cache.New(), cache.NewSnapshot()
	c.SetNode(node("a", ""))
	for _, name := range []string{"kept", "lost"} {
		info, err := nodeinfo.NewPodInfo(pod(name, "a"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Assume(info); err != nil {
			t.Fatal(err)
		}
		if err := c.Assume(info); err == nil {
			t.Errorf("%s was assumed twice", name)
		}
	}
	if _, cores := see(c, s); cores[0] != 2 {
		t.Errorf("%d cores are taken while both are assumed, want 2", cores[0])
	}
	c.SetPod(pod("kept", "a"))
	c.Forget(pod("kept", "a")) // too late: it is bound
	c.Forget(pod("lost", "a"))
	if _, cores := see(c, s); cores[0] != 1 || c.IsAssumed("kept") {
		t.Errorf("%d cores are taken, want 1, and none assumed", cores[0])
	}
	c.RemovePod("kept")
	if _, cores := see(c, s); cores[0] != 0 {
		t.Errorf("%d cores are taken, want 0", cores[0])
	}
}

func TestPodsMayBeToldOfBeforeAndAfterTheirNode(t *testing.T) {
	c, s := cache.New(), cache.NewSnapshot()
	c.SetPod(pod("early", "a"))
	if names, _ := see(c, s); len(names) != 0 {
		t.Errorf("nodes %v are listed before they are told of", names)
	}
	c.SetNode(node("a", ""))
	if _, cores := see(c, s); cores[0] != 1 {
		t.Errorf("%d cores are taken, want 1", cores[0])
	}
	c.RemoveNode("a")
	if names, _ := see(c, s); len(names) != 0 {
		t.Errorf("nodes %v are listed, want none", names)
	}
	c.RemovePod("early")
	if nodes, pods := c.Counts(); nodes != 0 || pods != 0 {
		t.Errorf("%d nodes and %d pods are known, want none", nodes, pods)
	}
}

func TestUpdateCopiesOnlyWhatChanged(t *testing.T) {
	c, s := cache.New(), cache.NewSnapshot()
	c.SetNode(node("a", ""))
	c.SetNode(node("b", ""))
	see(c, s)
	a, b, epoch := s.Nodes()[0], s.Nodes()[1], s.Epoch()
	c.SetPod(pod("p", "b"))
	see(c, s)
	if s.Nodes()[0] != a || s.Nodes()[1] == b || s.Epoch() != epoch {
		t.Error("want node b copied, and neither a nor the epoch touched")
	}
	if b.GetRequested().GetMilliCPU() != 0 {
		t.Error("a node that was handed out was changed")
	}
}

// TestImagesAreCountedWhenANodeIsSeen: nodes that come together know of each other's images; one that did not change learns of
// what came later only when it does.
func TestImagesAreCountedWhenANodeIsSeen(t *testing.T) {
	c, s := cache.New(), cache.NewSnapshot()
	has := func(name string) *corev1.Node {
		n := node(name, "a")
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"web:1"}, SizeBytes: 7}}
		return n
	}
	c.SetNode(has("n1"))
	c.SetNode(has("n2"))
	counts := func() map[string]int {
		c.Update(s)
		found := map[string]int{}
		for _, n := range s.Nodes() {
			for _, image := range n.GetImageStates() {
				found[n.Node().Name] = image.NumNodes
			}
		}
		return found
	}
	if d := cmp.Diff(map[string]int{"n1": 2, "n2": 2}, counts()); d != "" {
		t.Errorf("two came (-want +got):\n%s", d)
	}
	c.SetNode(has("n3"))
	c.SetPod(pod("p", "n2"))
	if d := cmp.Diff(map[string]int{"n1": 2, "n2": 3, "n3": 3}, counts()); d != "" {
		t.Errorf("a third came, and a pod onto the second (-want +got):\n%s", d)
	}
	c.RemoveNode("n3")
	c.SetNode(has("n1"))
	if d := cmp.Diff(map[string]int{"n1": 2, "n2": 3}, counts()); d != "" {
		t.Errorf("the third went, and the first was told of (-want +got):\n%s", d)
	}
}

// TestListsOfNodesWithAffinity: whatever comes and goes, the lists say what looking at every node would.
func TestListsOfNodesWithAffinity(t *testing.T) {
	terms := func(key string) []corev1.PodAffinityTerm {
		return []corev1.PodAffinityTerm{{TopologyKey: key, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}}}
	}
	affinities := []*corev1.Affinity{
		nil,
		{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms("zone")}},
		{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(corev1.LabelHostname)}},
		{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms("zone")}},
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 5))
		c, s := cache.New(), cache.NewSnapshot()
		var placed []*corev1.Pod
		for step := range 80 {
			name := fmt.Sprint("n", r.IntN(6))
			switch k := r.IntN(20); {
			case k == 0:
				c.RemoveNode(name)
			case k < 3:
				c.SetNode(node(name, fmt.Sprint("z", r.IntN(2))))
			case k < 10 && len(placed) > 0:
				i := r.IntN(len(placed))
				c.RemovePod(placed[i].UID)
				placed = slices.Delete(placed, i, i+1)
			default:
				p := pod(fmt.Sprint("p", step), name)
				p.Spec.Affinity = affinities[r.IntN(len(affinities))]
				c.SetPod(p)
				placed = append(placed, p)
			}
			c.Update(s)
			if r.IntN(3) == 0 {
				continue // nobody asks
			}
			for what, list := range map[string]struct {
				ask func() ([]fwk.NodeInfo, error)
				of  func(n fwk.NodeInfo) []fwk.PodInfo
			}{
				"affinity":      {s.NodeInfos().HavePodsWithAffinityList, fwk.NodeInfo.GetPodsWithAffinity},
				"anti-affinity": {s.NodeInfos().HavePodsWithRequiredAntiAffinityList, fwk.NodeInfo.GetPodsWithRequiredAntiAffinity},
				"far": {s.NodeInfos().HavePodsWithRequiredNonHostScopedAntiAffinityList,
					fwk.NodeInfo.GetPodsWithRequiredNonHostScopedAntiAffinity},
			} {
				var want []fwk.NodeInfo
				for _, n := range s.Nodes() {
					if len(list.of(n)) > 0 {
						want = append(want, n)
					}
				}
				if got, err := list.ask(); err != nil || !slices.Equal(got, want) {
					t.Fatalf("seed %d, step %d: nodes of pods with %s: %v, %v; want %v", seed, step, what, got, err, want)
				}
			}
		}
	}
}
