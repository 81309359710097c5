// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

func newManager(t *testing.T) (*volumes.Manager, *volumetest.Sources, volumetest.Kernel, *clocktesting.FakeClock) {
	return volumetest.New(t, New)
}

// TestNFS mounts directories of servers, once, and nothing is left where that fails.
func TestNFS(t *testing.T) {
	share := &corev1.NFSVolumeSource{Server: "files.example", Path: "/exports/a"}
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	readOnly := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: true}}
	pv := func(annotation string, options ...string) *corev1.PersistentVolume {
		out := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: corev1.PersistentVolumeSpec{
			MountOptions: options, PersistentVolumeSource: corev1.PersistentVolumeSource{NFS: share},
		}}
		if annotation != "" {
			out.Annotations = map[string]string{corev1.MountOptionAnnotation: annotation}
		}
		return out
	}
	for name, c := range map[string]struct {
		source  corev1.VolumeSource
		pv      *corev1.PersistentVolume
		dir     string
		mounted string // empty: it cannot be
	}{
		"of a pod": {corev1.VolumeSource{NFS: share}, nil, "v", "nfs files.example:/exports/a []"},
		"read alone": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "10.0.0.1", Path: "/a", ReadOnly: true}}, nil, "v",
			"nfs 10.0.0.1:/a [ro]"},
		"by IPv6": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "fd00::1", Path: "/a"}}, nil, "v",
			"nfs [fd00::1]:/a []"},
		"claimed":                  {claim, pv("", "hard", "nfsvers=4.1", "hard"), "pv", "nfs files.example:/exports/a [hard nfsvers=4.1]"},
		"claimed to be read":       {readOnly, pv("", "nfsvers=3"), "pv", "nfs files.example:/exports/a [nfsvers=3 ro]"},
		"with the old annotation":  {claim, pv("soft,bg", "hard"), "pv", "nfs files.example:/exports/a [bg soft]"},
		"of a server that is gone": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "gone", Path: "/a"}}, nil, "v", ""},
	} {
		m, s, mounted, _ := newManager(t)
		s.PV = c.pv
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}, Spec: corev1.PodSpec{Containers: using("v")}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.source}}
		dir := filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~nfs", c.dir)
		err := m.SetUp(t.Context(), pod, nil)
		if c.mounted == "" {
			if err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "v" : mount failed: no such server`) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the directory is left: %v", name, err)
			}
			continue
		}
		if err != nil || mounted[dir] != c.mounted || len(mounted) != 1 {
			t.Errorf("%s: mounted %v, want %q at %s; %v", name, mounted, c.mounted, dir, err)
		}
		if path, err := m.Path(t.Context(), pod, &pod.Spec.Volumes[0]); err != nil || path != dir {
			t.Errorf("%s: lies at %s, %v", name, path, err)
		}
		mounted[dir] = "as it was"
		if err := m.SetUp(t.Context(), pod, nil); err != nil || mounted[dir] != "as it was" {
			t.Errorf("%s: mounted again: %v, %v", name, mounted, err)
		}
		if err := m.TearDown(t.Context(), "u"); err != nil || len(mounted) != 0 {
			t.Errorf("%s: afterwards %v, %v", name, mounted, err)
		}
	}
}

func TestNFSSourcesThatAreRefused(t *testing.T) {
	for _, c := range []struct{ server, path, want string }{
		{"files.example", "/a", "files.example:/a"},
		{"files.example.", "/a:b", "files.example.:/a:b"},
		{"10.0.0.1", "/", "10.0.0.1:/"},
		{"fd00::1", "/a", "[fd00::1]:/a"},
		{"[fd00::1]", "/a", "[fd00::1]:/a"},
		{"fe80::1%eth0", "/a", "[fe80::1%eth0]:/a"},
		{server: "-T/etc/fstab", path: "/a"}, {server: "--bind", path: "/a"}, {server: "-", path: "/a"}, {server: "", path: "/a"},
		{server: "a:b", path: "/a"}, {server: "a:/etc", path: "/a"}, {server: "/etc", path: "/a"}, {server: "a,b", path: "/a"},
		{server: "a b", path: "/a"}, {server: "a\n", path: "/a"}, {server: "a\x00", path: "/a"}, {server: "[a]", path: "/a"},
		{server: "fe80::1%-o ro", path: "/a"}, {server: "a@b", path: "/a"}, {server: "a-", path: "/a"},
		{server: "a", path: ""}, {server: "a", path: "b"}, {server: "a", path: "-o"}, {server: "a", path: "/a\nb"},
		{server: "a", path: "/a b"}, {server: "a", path: "/a\x7f"},
	} {
		got, err := address(c.server, c.path)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("server %q, path %q: %q, %v", c.server, c.path, got, err)
		}
	}
	m, _, mounted, _ := newManager(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "-T/tmp/x",
		Path: "/a"}}}}
	err := m.SetUp(t.Context(), pod, nil)
	if err == nil || !strings.Contains(err.Error(), `NFS server "-T/tmp/x" is not a host name`) || len(mounted) > 0 {
		t.Errorf("mounted %v, %v", mounted, err)
	}
}

func TestNFSOptions(t *testing.T) {
	m, s, mounted, _ := newManager(t)
	s.PV = &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
	s.PV.Spec.NFS = &corev1.NFSVolumeSource{Server: "h", Path: "/a"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{Containers: using("v")}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	s.PV.Spec.MountOptions = []string{"hard", "vers=4\nro"}
	if err := m.SetUp(t.Context(), pod, nil); err == nil || !strings.Contains(err.Error(), "control characters") || len(mounted) > 0 {
		t.Errorf("mounted %v, %v", mounted, err)
	}
	s.PV.Spec.MountOptions = []string{"nfsvers=4.1", "-hard"}
	if err := m.SetUp(t.Context(), pod, nil); err != nil {
		t.Fatal(err)
	}
	if got := mounted[filepath.Join(m.PodDir("u"), "volumes/kubernetes.io~nfs/pv")]; got != "nfs h:/a [-hard nfsvers=4.1]" {
		t.Errorf("mounted %q", got)
	}
}

// using is a container with a volume.
func using(name string) []corev1.Container {
	return []corev1.Container{{VolumeMounts: []corev1.VolumeMount{{Name: name, MountPath: "/v"}}}}
}
