// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package downwardapi

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func newManager(t *testing.T) (*volumes.Manager, *volumetest.Sources, volumetest.Kernel, *clocktesting.FakeClock) {
	return volumetest.New(t, New)
}

// A volume of the downward API holds the pod's fields, the node's and the pod's addresses, and what containers may use.
func TestDownwardAPIVolume(t *testing.T) {
	m, _, _, _ := newManager(t)
	m.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")}
	item := func(path, field string, mode *int32) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: path, Mode: mode, FieldRef: &corev1.ObjectFieldSelector{FieldPath: field}}
	}
	source := &corev1.DownwardAPIVolumeSource{DefaultMode: new(int32(0o444)), Items: []corev1.DownwardAPIVolumeFile{
		item("labels", "metadata.labels", nil), item("sub/../pod", "status.podIP", new(int32(0o400))), item("host", "status.hostIP", nil),
		{Path: "limit", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.memory"}},
		{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}},
	}}
	pod := volumetest.Pod(corev1.VolumeSource{DownwardAPI: source})
	pod.Labels = map[string]string{"app": "a"}
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Limits: limits}}}
	dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~downward-api/v")
	for _, hosts := range []func() []string{nil, func() []string { return []string{"10.0.0.1"} }} {
		m.HostIPs = hosts
		if err := m.SetUp(t.Context(), pod, []string{"10.1.0.2"}); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"labels": `app="a"`, "pod": "10.1.0.2", "host": "", "limit": "1048576", "cpu": "4"}
		if hosts != nil {
			want["host"] = "10.0.0.1"
		}
		if diff := cmp.Diff(want, disktest.Read(t, dir)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	for name, mode := range map[string]os.FileMode{"labels": 0o444, "pod": 0o400} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
