// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// TestUsage reads what a node and its containers use: by annotations, which change; by the node's Phases; and by default.
func TestUsage(t *testing.T) {
	inBubble(t, Options{Nodes: 2}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		n := f.nodes.get("simulated-0")
		v := view{f, n}
		declares := func(cpu, memory string) func(p *corev1.Pod) {
			return func(p *corev1.Pod) {
				p.Annotations = map[string]string{AnnotationCPUUsage: cpu, AnnotationMemoryUsage: memory}
			}
		}
		measure := func() *stats.Usage {
			t.Helper()
			all, err := v.Stats(t.Context(), stats.Options{})
			if err != nil {
				t.Fatal(err)
			}
			return all
		}
		used := func(pod string) string {
			t.Helper()
			for _, s := range measure().Containers {
				if s.Target.Pod == pod {
					return fmt.Sprint(time.Duration(s.CPUNanoseconds), " ", s.MemoryWorkingSetBytes>>20)
				}
			}
			return "nothing"
		}
		is := func(pod, want string) {
			t.Helper()
			if got := used(pod); got != want {
				t.Errorf("%s has used %s, want %s", pod, got, want)
			}
		}
		create(t, c, pod("declares", declares("500m", "64Mi")))
		create(t, c, pod("silent", nil))
		create(t, c, pod("unreadable", declares("much", "-1")))
		create(t, c, pod("elsewhere", func(p *corev1.Pod) { p.Spec.NodeName = "simulated-1" }))
		pass(100 * time.Second)
		is("declares", "50s 64")
		is("silent", "100ms 1")
		is("unreadable", "100ms 1")
		is("elsewhere", "nothing")

		// A change holds from when it is made; what was used before stays.
		pass(100 * time.Second)
		p := read(t, c, "declares")
		declares("2", "64Mi")(p)
		if _, err := c.CoreV1().Pods("default").Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		pass(10 * time.Second)
		is("declares", "2m0s 64")

		before := measure().Host
		if want := uint64(nodeMemory + 66<<20); before.MemoryWorkingSetBytes != want || before.MemoryAvailableBytes != 256<<30-want {
			t.Errorf("the node uses %d bytes, and has %d to spare", before.MemoryWorkingSetBytes, before.MemoryAvailableBytes)
		}
		// The time of a pod that is gone stays the node's.
		if err := c.CoreV1().Pods("default").Delete(t.Context(), "declares", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		is("declares", "nothing")
		if after := measure().Host; after.CPUNanoseconds != before.CPUNanoseconds {
			t.Errorf("the node has used %d ns, and had used %d", after.CPUNanoseconds, before.CPUNanoseconds)
		}
	})
	takes := Phases{Usage: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m")}}
	if got, want := usageOf(&corev1.Pod{}, takes), (usage{250, defaultMemory}); got != want {
		t.Errorf("by its node's phases a pod uses %+v, want %+v", got, want)
	}
}

// TestEachNodeHasAnAddress finds nodes by theirs, guests too, and gives an address that is free again to the next guest only.
func TestEachNodeHasAnAddress(t *testing.T) {
	inBubble(t, Options{Nodes: 300}, func(t *testing.T, c kubernetes.Interface, f *fleet) {
		at := func(address string) string {
			node := f.at(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 1)))
			if node == nil {
				return ""
			}
			return node.Name()
		}
		guest := func(name, address string) string {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{Guest: "true"}}}
			if address != "" {
				n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
			}
			if _, err := c.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			n, err := c.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return n.Status.Addresses[0].Address
		}
		for _, g := range []struct{ name, before, want string }{
			{"g1", "", "127.128.1.45"},
			{"g2", "127.128.1.47", "127.128.1.47"}, // it was here before a restart
			{"g3", "127.128.1.47", "127.128.1.46"}, // another has that
			{"g4", "127.128.0.1", "127.128.1.48"},  // a node of a group has that
			{"g5", "192.0.2.1", "127.128.1.49"},
		} {
			if got := guest(g.name, g.before); got != g.want {
				t.Errorf("%s is at %s, want %s", g.name, got, g.want)
			}
		}
		for address, want := range map[string]string{
			"127.128.0.1": "simulated-0", "127.128.1.44": "simulated-299", "127.128.1.46": "g3", "127.0.0.1": "", "127.128.0.0": "",
			"127.128.2.0": "",
		} {
			if got := at(address); got != want {
				t.Errorf("at %s is %q, want %q", address, got, want)
			}
		}
		if err := c.CoreV1().Nodes().Delete(t.Context(), "g3", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := at("127.128.1.46"); got != "" {
			t.Errorf("%s is still at an address", got)
		}
	})
}
