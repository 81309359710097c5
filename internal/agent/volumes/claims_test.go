// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// claims plays an API server with one claim.
type claims struct {
	*volumetest.Sources
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
	return c.Sources.Volume(ctx, name)
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
		c.Sources = s
		m.Sources = &c.claims
		pod := volumetest.Pod(c.source)
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

// The volumes that the node writes are read-only for containers whatever the mount says; others are what their mount or claim says.
func TestReadOnlyMounts(t *testing.T) {
	named := corev1.LocalObjectReference{Name: "cm"}
	claim := func(readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c", ReadOnly: readOnly}}
	}
	for name, c := range map[string]struct {
		source corev1.VolumeSource
		always bool
	}{
		"configMap":     {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: named}}, true},
		"secret":        {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}, true},
		"projected":     {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}, true},
		"downwardAPI":   {corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}}, true},
		"claim":         {claim(false), false},
		"claim to read": {claim(true), true},
		"nfs":           {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "h", Path: "/"}}, false},
		"nfs to read":   {corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "h", Path: "/", ReadOnly: true}}, true},
		"emptyDir":      {corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}, false},
		"hostPath":      {corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m, _, _, _ := newManager(t)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
			pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.source}}
			if err := m.SetUp(t.Context(), pod, nil); err != nil {
				t.Fatal(err)
			}
			container := &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{
				{Name: "v", MountPath: "/a"}, {Name: "v", MountPath: "/b", ReadOnly: true},
			}}
			mounts, err := m.Mounts(t.Context(), pod, container, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if mounts[0].Readonly != c.always {
				t.Errorf("without readOnly: read-only %v, want %v", mounts[0].Readonly, c.always)
			}
			if !mounts[1].Readonly {
				t.Error("readOnly of the mount is ignored")
			}
		})
	}
}
