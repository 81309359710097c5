// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mortise-dev/mortise/internal/agent/device"
	"github.com/mortise-dev/mortise/internal/machine"
)

// kills ends, one after the other, everything that pods live by, and wants the pods back.
func kills(t *testing.T, n *realNode) {
	kept := webPod("kept", map[string]string{"app": "kept"})
	kept.Spec.Volumes = []corev1.Volume{
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	kept.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "memory", MountPath: "/memory"},
		{Name: "disk", MountPath: "/part", SubPath: "part"}}
	kept.Spec.Containers[0].Ports[0].HostPort = 18080
	n.createService(t, "kept", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: kept.Labels,
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}})
	n.create(t, kept)
	first := n.ready(t, "kept")
	n.answersOutside(t, nodeAddress+":80")

	t.Run("mortise, while it makes pods", func(t *testing.T) {
		var names []string
		for _, name := range []string{"p0", "p1", "p2", "p3", "p4", "p5"} {
			n.create(t, idlePod(name))
			names = append(names, name)
		}
		n.kill()
		// What it wrote into the kernel goes on.
		got, _ := n.callsFrom(t, nodeAddress+":80")
		want(t, "endpoints without the process", got, "kept")
		n.up(t)
		n.ready(t, names...)
		same(t, first, n.ready(t, "kept"))
	})

	t.Run("containerd", func(t *testing.T) {
		n.killRuntime(t)
		n.create(t, idlePod("after"))
		n.prepare(t)
		n.ready(t, "after", "p0")
		same(t, first, n.ready(t, "kept"))
	})

	t.Run("a shim", func(t *testing.T) {
		id := sandboxOf(t, n, first)
		found := false
		processes(func(pid, name string) {
			line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
			if err == nil && name == "containerd-shim" && bytes.Contains(line, []byte(id)) {
				found = true
				killProcess(t, pid)
			}
		})
		if !found {
			t.Fatalf("no shim of sandbox %s", id)
		}
		again := n.pod(t, "kept", func(p *corev1.Pod) bool {
			return ready(*p) && p.Status.ContainerStatuses[0].ContainerID != first.Status.ContainerStatuses[0].ContainerID
		})
		if c := again.Status.ContainerStatuses[0]; c.RestartCount != 1 || again.UID != first.UID {
			t.Errorf("after its shim, the container was restarted %d times", c.RestartCount)
		}
		if page, err := n.call(nodeAddress + ":18080"); err != nil || !strings.HasPrefix(page, "kept ") {
			t.Errorf("its host's port says %q, %v", page, err)
		}
	})

	t.Run("everything, as with the machine's power", func(t *testing.T) {
		before := n.ready(t, "kept")
		n.everyPod(t)
		n.kill()
		n.powerCut(t)
		n.prepare(t)
		n.up(t)
		again := n.pod(t, "kept", func(p *corev1.Pod) bool {
			return ready(*p) && p.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID
		})
		if c := again.Status.ContainerStatuses[0]; c.RestartCount != before.Status.ContainerStatuses[0].RestartCount+1 {
			t.Errorf("the container was restarted %d times, and %d before", c.RestartCount, before.Status.ContainerStatuses[0].RestartCount)
		}
		n.ready(t, "p0", "p1", "p2", "p3", "p4", "p5", "after")
		names, _ := n.often(t, "p0", "kept")
		want(t, "endpoints", names, "kept")
	})
}

// same wants the same container, never restarted.
func same(t *testing.T, before, after *corev1.Pod) {
	t.Helper()
	a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if a.ContainerID != b.ContainerID || a.RestartCount != b.RestartCount || before.Status.PodIP != after.Status.PodIP {
		t.Errorf("pod %s had %s at %s, has %s at %s", before.Name, a.ContainerID, before.Status.PodIP, b.ContainerID, after.Status.PodIP)
	}
}

func (n *realNode) killRuntime(t *testing.T) {
	t.Helper()
	pid, err := machine.PID(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	killProcess(t, strconv.Itoa(pid))
}

// killProcess kills a process of the test's own process namespace.
func killProcess(t *testing.T, pid string) {
	t.Helper()
	number, err := strconv.Atoi(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(number, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
}

var sandboxID = regexp.MustCompile(`"io.kubernetes.cri.sandbox-id": "([0-9a-f]+)"`)

func sandboxOf(t *testing.T, n *realNode, pod *corev1.Pod) string {
	t.Helper()
	found := sandboxID.FindStringSubmatch(n.ctr(t, "containers", "info",
		strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")))
	if found == nil {
		t.Fatalf("containerd does not say which sandbox pod %s has", pod.Name)
	}
	return found[1]
}

// powerCut takes away what does not outlive a machine's reboot: processes, mounts, namespaces, links, rules, cgroups, and the files in
// memory. What is on disk stays.
func (n *realNode) powerCut(t *testing.T) {
	t.Helper()
	n.killRuntime(t)
	processes(func(pid, name string) {
		groups, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
		if name == "containerd-shim" || err == nil && bytes.Contains(groups, []byte("/kubepods")) {
			killProcess(t, pid)
		}
	})
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(mounts), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		f := strings.Fields(line)
		if len(f) < 5 || f[4] == filepath.Join(n.dir, "kubelet") || !strings.HasPrefix(f[4], n.dir+"/") && !strings.HasPrefix(f[4], "/run/") {
			continue
		}
		if err := unix.Unmount(f[4], unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Fatalf("unmount %s: %v", f[4], err)
		}
	}
	inMemory, err := filepath.Glob("/run/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(inMemory, filepath.Join(n.dir, "containerd/state")) {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	links, err := device.Whole(netlink.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if name := l.Attrs().Name; strings.HasPrefix(name, "mortise") || strings.HasPrefix(name, "veth") {
			if err := netlink.LinkDel(l); err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) && !errors.Is(err, unix.ENODEV) {
				t.Fatalf("remove link %s: %v", name, err)
			}
		}
	}
	if out, err := exec.CommandContext(t.Context(), "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		t.Fatalf("flush rules: %v\n%s", err, out)
	}
	for _, uid := range slices.Sorted(maps.Keys(n.pods)) {
		n.removeCgroups(t, uid)
	}
}

// removeCgroups removes the cgroups of a pod whose processes were killed, the innermost first.
func (n *realNode) removeCgroups(t *testing.T, uid string) {
	t.Helper()
	var all []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, uid) {
			all = append(all, path)
		}
		return nil
	})
	slices.Reverse(all)
	for _, path := range all {
		// A process that is being killed keeps it for a moment longer; the node takes over what is there.
		_ = unix.Rmdir(path)
	}
}
