// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// recording keeps the requests to stage.
type recording struct {
	*fakeDriver
	staged *csipb.NodeStageVolumeRequest
}

func (r *recording) Node(string) (csipb.NodeClient, error) { return r, nil }

func (r *recording) NodeStageVolume(
	ctx context.Context, q *csipb.NodeStageVolumeRequest, o ...grpc.CallOption,
) (*csipb.NodeStageVolumeResponse, error) {
	r.staged = q
	return r.fakeDriver.NodeStageVolume(ctx, q, o...)
}

func (r *recording) factory(host *volumes.Host) volumes.Plugin {
	r.mounter = host.Mounter
	host.Drivers, host.Attachments, host.NodeName = r, r, "n1"
	return New(host)
}

// Requests have the secrets that the volume names, its attributes, its file system with the mount options, and the pod's group if the
// driver mounts with it.
func TestRequests(t *testing.T) {
	d := &recording{fakeDriver: newDriver()}
	d.able = append(d.able, csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP)
	m, sources, _, _ := volumetest.New(t, d.factory)
	sources.PV = persistentVolume(corev1.ReadWriteMany)
	sources.PV.Spec.MountOptions = []string{"noatime", "a=b"}
	source := sources.PV.Spec.CSI
	source.FSType = "ext4"
	source.NodeStageSecretRef = &corev1.SecretReference{Namespace: "n", Name: "stage"}
	source.NodePublishSecretRef = &corev1.SecretReference{Namespace: "n", Name: "publish"}
	pod := podOf("u")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: new(int64(77))}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]*csipb.VolumeCapability{"stage": d.staged.VolumeCapability, "publish": d.last.VolumeCapability} {
		mount := got.GetMount()
		if got.AccessMode.Mode != csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER || mount.GetFsType() != "ext4" ||
			!slices.Equal(mount.GetMountFlags(), []string{"noatime", "a=b"}) || mount.GetVolumeMountGroup() != "77" {
			t.Errorf("%s: capability %v", name, got)
		}
	}
	secret := map[string]string{"s": "secret"}
	if !maps.Equal(d.staged.Secrets, secret) || !maps.Equal(d.last.Secrets, secret) || d.staged.VolumeContext["a"] != "b" {
		t.Errorf("stage %v, publish %v", d.staged, d.last)
	}
	source.NodeStageSecretRef.Name = "no"
	err := m.SetUp(t.Context(), podOf("u2"), nil)
	if err != nil {
		t.Errorf("the device is staged: %v", err)
	}
	source.NodePublishSecretRef.Name = "no"
	if err = m.SetUp(t.Context(), podOf("u3"), nil); err == nil || !strings.Contains(err.Error(), "fetching NodePublishSecretRef n/no failed") {
		t.Errorf("error %v", err)
	}
}

// Access modes are those of CSI, of which a driver may know the newer ones.
func TestAccessModes(t *testing.T) {
	for mode, want := range map[corev1.PersistentVolumeAccessMode][2]csipb.VolumeCapability_AccessMode_Mode{
		corev1.ReadWriteOnce: {csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
		corev1.ReadWriteOncePod: {csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER},
		corev1.ReadOnlyMany: {csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY},
		corev1.ReadWriteMany: {csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
			csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		"Other": {},
	} {
		for i, newer := range []bool{false, true} {
			v := &volume{mode: mode, able: able{multiWriter: newer}}
			if got := v.accessMode(); got != want[i] {
				t.Errorf("%s, newer modes %v: %s, want %s", mode, newer, got, want[i])
			}
		}
	}
}

// With seLinuxMount, the label of the containers that mount a volume is a mount option, if they agree on one that has a level.
func TestLabel(t *testing.T) {
	level := func(l string) *corev1.SecurityContext {
		return &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: l}}
	}
	recursive := corev1.SELinuxChangePolicyRecursive
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod, class *storagev1.CSIDriver)
		off    bool // the machine has no SELinux
		want   string
	}{
		"of the pod":  {func(*corev1.Pod, *storagev1.CSIDriver) {}, false, "system_u:object_r:container_file_t:s0:c1"},
		"no SELinux":  {func(*corev1.Pod, *storagev1.CSIDriver) {}, true, ""},
		"no such CSI": {func(_ *corev1.Pod, class *storagev1.CSIDriver) { class.Spec.SELinuxMount = nil }, false, ""},
		"of the container": {func(pod *corev1.Pod, _ *storagev1.CSIDriver) {
			pod.Spec.Containers[0].SecurityContext = level("s0:c2")
		}, false, "system_u:object_r:container_file_t:s0:c2"},
		"of a user": {func(pod *corev1.Pod, _ *storagev1.CSIDriver) {
			pod.Spec.SecurityContext.SELinuxOptions.User = "me_u"
		}, false, "me_u:object_r:container_file_t:s0:c1"},
		"two": {func(pod *corev1.Pod, _ *storagev1.CSIDriver) {
			second := *pod.Spec.Containers[0].DeepCopy()
			second.SecurityContext = level("s0:c2")
			pod.Spec.Containers = append(pod.Spec.Containers, second)
		}, false, ""},
		"no level": {func(pod *corev1.Pod, _ *storagev1.CSIDriver) {
			pod.Spec.SecurityContext.SELinuxOptions.Level = ""
		}, false, ""},
		"recursive": {func(pod *corev1.Pod, _ *storagev1.CSIDriver) {
			pod.Spec.SecurityContext.SELinuxChangePolicy = &recursive
		}, false, ""},
	} {
		pod := podOf("u")
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0:c1"}}
		class := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{SELinuxMount: new(true)}}
		c.change(pod, class)
		p := &caller{selinux: func() bool { return !c.off }}
		v := &volume{pod: pod, class: class, spec: &volumes.Spec{Pod: pod, Volume: &pod.Spec.Volumes[0]}}
		if got := p.label(v); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := withLabel([]string{"ro"}, "a:b"); !slices.Equal(got, []string{"ro", `context="a:b"`}) {
		t.Errorf("options %q", got)
	}
}
