// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

// failures take away for a while what the node needs: its network's plug-in, an image, room on its disk.
func failures(t *testing.T, n *realNode) {
	t.Run("a CNI plug-in that fails", func(t *testing.T) {
		plugin := pluginPath(t)
		broken := filepath.Join(t.TempDir(), "bridge")
		n.write(t, broken, "#!/bin/sh\necho '{\"cniVersion\": \"0.4.0\", \"code\": 100, \"msg\": \"no cables left\"}'\nexit 1\n")
		if err := unix.Mount(broken, plugin, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		n.create(t, idlePod("unplugged"))
		n.hasEvent(t, "unplugged", "FailedCreatePodSandBox", "no cables left")
		if err := unix.Unmount(plugin, 0); err != nil {
			t.Fatal(err)
		}
		n.ready(t, "unplugged")
	})

	t.Run("an image that is gone", func(t *testing.T) {
		p := idlePod("imageless")
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Command = images.Web2, nil
		n.ctr(t, "images", "rm", "--sync", images.Web2)
		n.create(t, p)
		n.pod(t, "imageless", func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
				p.Status.ContainerStatuses[0].State.Waiting.Reason == "ErrImageNeverPull"
		})
		n.prepare(t)
		n.ready(t, "imageless")
	})

	t.Run("a disk that is full", func(t *testing.T) {
		n.create(t, idlePod("frugal"))
		n.ready(t, "frugal")
		p := idlePod("glutton")
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		p.Spec.Containers[0] = container("c", "dd if=/dev/zero of=/v/all bs=64k; while :; do sleep 3600; done")
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		n.create(t, p)
		n.pod(t, "glutton", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" })
		n.hasEvent(t, "glutton", "Evicted", "ephemeral-storage")
		n.ready(t, "frugal")
		awaitEvent(t, n.c, "nodes", "", fields.Everything(), &corev1.Node{}, patience, func(e watch.Event) bool {
			node, ok := e.Object.(*corev1.Node)
			return ok && conditionOf(node, corev1.NodeDiskPressure) == corev1.ConditionFalse && len(node.Spec.Taints) == 0
		})
		n.create(t, idlePod("next"))
		n.ready(t, "next")
	})
}

// pluginPath is where the bridge plug-in is on this machine.
func pluginPath(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/usr/lib/cni", "/opt/cni/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, "bridge")); err == nil {
			return path
		}
	}
	t.Fatal("no CNI plug-in bridge")
	return ""
}
