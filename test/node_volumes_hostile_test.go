// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// hostileVolumes has containers do to their volumes what would lead the node astray.
func hostileVolumes(t *testing.T, n *realNode, home string) {
	precious := filepath.Join(home, "precious")
	if err := os.MkdirAll(precious, 0o700); err != nil {
		t.Fatal(err)
	}
	n.write(t, filepath.Join(precious, "file"), "of the host\n")
	maps := n.c.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "hostile"},
		Data: map[string]string{"key": "old"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	// The pod is one that the strictest namespaces admit.
	p := mounting("writer", map[string]corev1.VolumeSource{
		"cm": {ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "hostile"}}},
	})
	p.Spec.SecurityContext = &corev1.PodSecurityContext{
		RunAsUser: new(int64(1000)), RunAsNonRoot: new(true),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "restrained",
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := n.c.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEvent(t, n.c, "serviceaccounts", ns.Name, fields.OneTermEqualSelector("metadata.name", "default"), &corev1.ServiceAccount{}, patience,
		func(e watch.Event) bool { return e.Type != watch.Deleted })
	admitted := p.DeepCopy()
	admitted.Namespace = ns.Name
	if _, err := n.c.CoreV1().Pods(ns.Name).Create(t.Context(), admitted,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("a restricted namespace does not take the pod: %v", err)
	}

	// The same as root of the container, with a mount that asks to write, and a FIFO where a part of a volume is looked for.
	root := mounting("root", map[string]corev1.VolumeSource{"cm": p.Spec.Volumes[0].VolumeSource})
	fifo := idlePod("fifo")
	fifo.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	fifo.Spec.InitContainers = []corev1.Container{container("init", "mknod /v/pipe p")}
	fifo.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	fifo.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: "pipe"}}
	n.create(t, fifo, p, root)
	n.ready(t, "fifo", "writer", "root")
	if got := n.inside(t, "fifo", "[ -p /m ] && echo a pipe"); got != "a pipe\n" {
		t.Errorf("the part of the volume is %q", got)
	}
	for _, name := range []string{"writer", "root"} {
		for _, command := range []string{"mv ..data x", "rm -f ..data", "ln -s " + precious + " ..data_tmp", "mkdir x", "mv -T ..2* x"} {
			if got := n.inside(t, name, "cd /cm; "+command+" 2>&1; true"); !strings.Contains(got, "Read-only file system") {
				t.Errorf("%s: %s: %q", name, command, got)
			}
		}
	}
	if _, err := maps.Patch(t.Context(), "hostile", types.MergePatchType, []byte(`{"data":{"key":"new"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"writer", "root"} {
		if got := n.inside(t, name, "while [ $(cat /cm/key) = old ]; do :; done; cat /cm/key"); got != "new" {
			t.Errorf("%s sees %q", name, got)
		}
	}
	if got, err := os.ReadFile(filepath.Join(precious, "file")); err != nil || string(got) != "of the host\n" {
		t.Errorf("the host's file is %q, %v", got, err)
	}
	n.deleteAll(t)
	if err := errors.Join(maps.Delete(t.Context(), "hostile", metav1.DeleteOptions{}),
		n.c.CoreV1().Namespaces().Delete(t.Context(), ns.Name, metav1.DeleteOptions{})); err != nil {
		t.Error(err)
	}
}
