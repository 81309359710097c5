// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// configured reads a configuration, without ports that may be taken. Unless it says otherwise, the disk of the machine may be full.
func configured(t *testing.T, text string) *configv1beta1.KubeletConfiguration {
	t.Helper()
	if !strings.Contains(text, "evictionHard:") {
		text = "evictionHard: {memory.available: 1Mi}\n" + text
	}
	c, err := kubeletconfig.Parse([]byte(
		"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: 0\nfailSwapOn: false\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newConfigured is a node on a runtime without containers, with a kubelet configuration.
func newConfigured(t *testing.T, text string, change func(*Options)) (*cluster, *fakecri.Runtime) {
	t.Helper()
	dir := t.TempDir()
	r := fakecri.New(dir, clock.RealClock{}.Now, images.Busybox)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	o := Options{
		NodeName: "n1", RuntimeEndpoint: r.Socket(), CNI: CNIOptions{ConfDir: "-"},
		Host:      HostOptions{RootDir: dir + "/kubelet", LogDir: dir + "/pods", CgroupFS: t.TempDir(), Mounter: noMounts{}},
		Addresses: nodeaddress.Fixed("192.168.1.5"), Kubelet: configured(t, text),
	}
	if change != nil {
		change(&o)
	}
	return newCluster(t, o), r
}

func TestNodeIsAsItsConfigurationSays(t *testing.T) {
	c, _ := newConfigured(t, `
maxPods: 7
nodeLeaseDurationSeconds: 12
nodeStatusMaxImages: 0
providerID: cloud://1
registerWithTaints: [{key: new, effect: NoSchedule}]
systemReserved: {memory: 64Mi, cpu: 100m}
kubeReserved: {memory: 32Mi}
evictionHard: {memory.available: 16Mi}
enableControllerAttachDetach: false
`, nil)
	node, err := c.client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	reserved := func(name corev1.ResourceName) int64 {
		all, left := node.Status.Capacity[name], node.Status.Allocatable[name]
		all.Sub(left)
		return all.MilliValue()
	}
	pages := int64(0) // that the machine has set aside are no other memory's
	for name, q := range node.Status.Capacity {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			pages += q.MilliValue()
		}
	}
	if node.Status.Capacity.Pods().Value() != 7 || reserved(corev1.ResourceMemory) != 112<<20*1000+pages ||
		reserved(corev1.ResourceCPU) != 100 || reserved(corev1.ResourceEphemeralStorage) != 0 {
		t.Errorf("capacity %v, allocatable %v", node.Status.Capacity, node.Status.Allocatable)
	}
	if node.Spec.ProviderID != "cloud://1" || len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != "new" || len(node.Status.Images) != 0 ||
		len(node.Annotations) != 0 {
		t.Errorf("node: %+v", node)
	}
	lease, err := c.client.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || *lease.Spec.LeaseDurationSeconds != 12 {
		t.Errorf("lease: %+v, %v", lease, err)
	}
}

func TestSysctlsAreChecked(t *testing.T) {
	c, r := newConfigured(t, "allowedUnsafeSysctls: ['kernel.msg*']\n", nil)
	with := func(name, sysctl string) {
		p := onePod(name)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: sysctl, Value: "1"}}}
		c.create(p)
	}
	with("bad", "kernel.shmmax")
	pod := c.await("bad", "refused", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
	if pod.Status.Reason != "SysctlForbidden" || pod.Status.Message != `Pod was rejected: forbidden sysctl: "kernel.shmmax" not allowlisted` {
		t.Errorf("status: %+v", pod.Status)
	}
	c.awaitEvent("bad", "SysctlForbidden")
	if n := r.Calls("RunPodSandbox"); n != 0 {
		t.Errorf("%d sandboxes were made", n)
	}
	with("good", "kernel.msgmax")
	c.await("good", "ready", isReady)
}

// TestEffectiveWithoutFile: a node that nobody has configured takes pods on a disk that is fairly full; one that has a file goes by it.
func TestEffectiveWithoutFile(t *testing.T) {
	for signal, want := range map[string]string{"nodefs.available": "5%", "imagefs.available": "5%", "memory.available": "100Mi",
		"imagefs.inodesFree": "5%"} {
		if got := kubeletconfig.EvictionHard(kubeletconfig.Effective(nil))[signal]; got != want {
			t.Errorf("%s is %q, want %q", signal, got, want)
		}
	}
	given := kubeletconfig.Default()
	if got := kubeletconfig.EvictionHard(kubeletconfig.Effective(given))["imagefs.available"]; got != "15%" {
		t.Errorf("imagefs.available is %q with a file that does not say, want 15%%", got)
	}
}
