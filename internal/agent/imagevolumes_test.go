// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/machine/images"
)

func withImageVolume(name, reference string, policy corev1.PullPolicy) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: reference,
			PullPolicy: policy}}}},
		Containers: []corev1.Container{{
			Name: "c", Command: sh("sleep 1000"), Env: []corev1.EnvVar{{Name: "PART", Value: "b"}},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "data", MountPath: "/part", SubPathExpr: "a/$(PART)"}},
		}},
	}}
}

// A volume that is an image is pulled as its policy says, and mounted by the runtime, read-only.
func TestImageVolume(t *testing.T) {
	c, r := newFake(t, nil)
	r.Pullable("registry.test/files:1")
	c.create(withImageVolume("files", "registry.test/files:1", corev1.PullIfNotPresent))
	c.await("files", "running", running(0))
	mounts := slices.DeleteFunc(r.Mounts("files", "c"), func(m *runtimeapi.Mount) bool { return m.Image == nil })
	if len(mounts) != 2 {
		t.Fatalf("mounts: %v", mounts)
	}
	for i, want := range []struct{ at, part string }{{"/data", ""}, {"/part", "a/b"}} {
		m := mounts[i]
		if m.ContainerPath != want.at || m.ImageSubPath != want.part || !m.Readonly || m.HostPath != "" ||
			m.Image.Image != "sha256:registry.test/files:1" || m.Image.UserSpecifiedImage != "registry.test/files:1" {
			t.Errorf("mount %d: %v", i, m)
		}
	}
	c.awaitEvent("files", `Pulling: Pulling image "registry.test/files:1"`)
}

func TestImageVolumeIsNotThere(t *testing.T) {
	c, _ := newFake(t, nil)
	c.create(withImageVolume("none", "registry.test/none:1", corev1.PullIfNotPresent))
	c.await("none", "failing", waitingFor("ErrImagePull"))
	c.create(withImageVolume("never", "registry.test/never:1", corev1.PullNever))
	pod := c.await("never", "refused", waitingFor("ErrImageNeverPull"))
	if got, want := pod.Status.ContainerStatuses[0].State.Waiting.Message,
		`Container image "registry.test/never:1" is not present with pull policy of Never`; got != want {
		t.Errorf("%s\nnot %s", got, want)
	}
	absolute := withImageVolume("abs", images.Busybox, corev1.PullNever)
	absolute.Spec.Containers[0].Env[0].Value = "../../.."
	c.create(absolute)
	pod = c.await("abs", "refused", waitingFor("CreateContainerConfigError"))
	if got := pod.Status.ContainerStatuses[0].State.Waiting.Message; got != "unable to provision SubPath `a/../../..`: must not contain '..'" {
		t.Error(got)
	}
}

// imageVolumeEndToEnd mounts an image where the runtime can, and shows that one that cannot refuses the container.
func imageVolumeEndToEnd(t *testing.T, c *cluster) {
	pod := withImageVolume("mounted", images.Busybox, corev1.PullNever)
	pod.Spec.Containers[0].VolumeMounts = pod.Spec.Containers[0].VolumeMounts[:1]
	pod.Spec.Containers[0].Command = sh("test -x /data/bin/busybox && ! touch /data/f 2>/dev/null && echo mounted; sleep 1000")
	c.create(pod)
	pod = c.await("mounted", "running or refused", func(p *corev1.Pod) bool { return isReady(p) || waitingFor("CreateContainerError")(p) })
	if isReady(pod) {
		c.awaitLog("mounted", "c", "mounted\n")
		return
	}
	if got := pod.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(got,
		`failed to mkdir "": mkdir : no such file or directory`) {
		t.Errorf("containerd before 2.1 refuses with %s", got)
	}
}
