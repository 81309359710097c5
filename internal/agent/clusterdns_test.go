// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// TestClusterDNSComesLater starts pods before the cluster has a DNS and after.
func TestClusterDNSComesLater(t *testing.T) {
	dir := t.TempDir()
	r := fakecri.New(dir, clock.RealClock{}.Now, images.Busybox)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	var known atomic.Pointer[[]string]
	known.Store(&[]string{})
	c := newCluster(t, Options{
		NodeName: "n1", RuntimeEndpoint: r.Socket(), CNI: CNIOptions{ConfDir: "-"},
		Host:      HostOptions{RootDir: dir + "/kubelet", LogDir: dir + "/pods", CgroupFS: t.TempDir(), Mounter: noMounts{}},
		Addresses: nodeaddress.Fixed("192.168.1.5"), ClusterDNS: func() []string { return *known.Load() },
	})
	const missing = `MissingClusterDNS: pod: "before_default(`
	start := func(name string, policy corev1.DNSPolicy) (servers []string) {
		pod := onePod(name)
		pod.Spec.DNSPolicy = policy
		c.create(pod)
		c.await(name, "ready", isReady)
		sandbox, _ := r.Made(name, "c")
		return sandbox.DnsConfig.Servers
	}
	if servers := start("before", ""); slices.Contains(servers, "10.96.0.10") {
		t.Errorf("before there is a cluster DNS a pod asks %q", servers)
	}
	c.awaitEvent("before", missing)
	start("other", corev1.DNSDefault)
	known.Store(&[]string{"10.96.0.10"})
	if servers := start("after", ""); !slices.Equal(servers, []string{"10.96.0.10"}) {
		t.Errorf("with a cluster DNS a pod asks %q", servers)
	}
	for _, pod := range []string{"other", "after"} {
		c.awaitEvent(pod, "Started")
		for _, e := range c.events(pod) {
			if len(e) > 17 && e[:17] == "MissingClusterDNS" {
				t.Errorf("pod %s: event %q", pod, e)
			}
		}
	}
}
