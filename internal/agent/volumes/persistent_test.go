// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
		"of a pod":                 {corev1.VolumeSource{NFS: share}, nil, "v", "nfs files.example:/exports/a []"},
		"read alone":               {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "10.0.0.1", Path: "/a", ReadOnly: true}}, nil, "v", "nfs 10.0.0.1:/a [ro]"},
		"by IPv6":                  {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "fd00::1", Path: "/a"}}, nil, "v", "nfs [fd00::1]:/a []"},
		"claimed":                  {claim, pv("", "hard", "nfsvers=4.1", "hard"), "pv", "nfs files.example:/exports/a [hard nfsvers=4.1]"},
		"claimed to be read":       {readOnly, pv("", "nfsvers=3"), "pv", "nfs files.example:/exports/a [nfsvers=3 ro]"},
		"with the old annotation":  {claim, pv("soft,bg", "hard"), "pv", "nfs files.example:/exports/a [bg soft]"},
		"of a server that is gone": {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "gone", Path: "/a"}}, nil, "v", ""},
	} {
		m, s, mounted, _ := newManager(t)
		s.pv = c.pv
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u"}}
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
		if err := m.TearDown("u"); err != nil || len(mounted) != 0 {
			t.Errorf("%s: afterwards %v, %v", name, mounted, err)
		}
	}
}

// TestMountSaysWhatMountSays: the program's arguments and its words are in the error, and it ends when nobody waits for it any more.
func TestMountSaysWhatMountSays(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/asked\ncase $4 in slow:*) sleep 60;; bad:*) echo no such share >&2; exit 32;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if err := (System{}).Mount(t.Context(), "good:/a", "/mnt", "nfs", []string{"ro", "soft"}); err != nil {
		t.Error(err)
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err != nil || string(asked) != "-t nfs -o ro,soft -- good:/a /mnt\n" {
		t.Errorf("asked %q, %v", asked, err)
	}
	err := System{}.Mount(t.Context(), "bad:/a", "/mnt", "nfs", nil)
	if want := "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs bad:/a /mnt\nOutput: no such share\n"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := (System{}).Mount(ctx, "slow:/a", "/mnt", "nfs", nil); err == nil {
		t.Error("it did not end")
	}
}

// claims plays an API server with one claim.
type claims struct {
	*sources
	claim       *corev1.PersistentVolumeClaim
	err, volume error
	asked       []string
}

func (c *claims) Claim(_ context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	c.asked = append(c.asked, namespace+"/"+name)
	return c.claim, c.err
}

func (c *claims) Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	c.asked = append(c.asked, name)
	if c.volume != nil {
		return nil, c.volume
	}
	return c.sources.Volume(ctx, name)
}

// A pod has no volume of a claim until that is bound. The claim of an ephemeral volume has the pod's name and its own.
func TestClaims(t *testing.T) {
	bound := func(phase corev1.PersistentVolumeClaimPhase, volume string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: volume}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase},
		}
	}
	named := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
	ephemeral := corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}
	deleted := claims{claim: bound(corev1.ClaimBound, "pv-1"), volume: errors.New("none")}
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		claims
		want string   // the error's; empty: none
		asks []string // for what
	}{
		"bound":       {named, claims{claim: bound(corev1.ClaimBound, "pv-1")}, "", []string{"n/c", "pv-1"}},
		"ephemeral":   {ephemeral, claims{claim: bound(corev1.ClaimBound, "pv-1")}, "", []string{"n/p-v", "pv-1"}},
		"no claim":    {ephemeral, claims{err: errors.New("none")}, "get claim p-v: none", []string{"n/p-v"}},
		"pending":     {named, claims{claim: bound(corev1.ClaimPending, "")}, "claim c is not bound", []string{"n/c"}},
		"lost":        {named, claims{claim: bound(corev1.ClaimLost, "pv-1")}, "claim c is not bound", []string{"n/c"}},
		"not decided": {named, claims{claim: bound(corev1.ClaimBound, "")}, "claim c is not bound", []string{"n/c"}},
		"no volume":   {named, deleted, "get persistent volume pv-1: none", []string{"n/c", "pv-1"}},
	} {
		m, s, _, _ := newManager(t)
		c.sources = s
		m.Sources = &c.claims
		pod := holding(c.source)
		_, path := m.Path(t.Context(), pod, &pod.Spec.Volumes[0])
		_, mounts := m.Mounts(t.Context(), pod, part(""), nil, nil)
		for what, err := range map[string]error{"SetUp": m.SetUp(t.Context(), pod, nil), "Path": path, "Mounts": mounts} {
			if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%s: %s: %v, want %s", name, what, err, c.want)
			}
		}
		if len(c.asked) != 3*len(c.asks) || !slices.Equal(c.asked[:len(c.asks)], c.asks) {
			t.Errorf("%s: asked for %q", name, c.asked)
		}
	}
}

// The type of a hostPath is checked where a claim leads to it, too.
func TestClaimedHostPath(t *testing.T) {
	m, s, _, _ := newManager(t)
	file := &corev1.HostPathVolumeSource{Path: "/proc/self/stat", Type: new(corev1.HostPathDirectory)}
	source, pv := claimOf(corev1.PersistentVolumeSource{HostPath: file})
	s.pv = pv
	if err := m.SetUp(t.Context(), holding(source), nil); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("a claim of a hostPath of another type: %v", err)
	}
}
