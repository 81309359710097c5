// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package tokensecrets

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestFill(t *testing.T) {
	failed := false
	controllertest.Run(t, "testdata/fill.txtar", controllers.Options{Cluster: controllers.Cluster{
		RootCA: []byte("PEM"),
		Tokens: func(_ context.Context, namespace, secret, account, uid string) (string, error) {
			if !failed {
				failed = true
				return "", errors.New("no entropy")
			}
			return strings.Join([]string{namespace, secret, account, uid}, "+"), nil
		},
	}}, Filler())
}

func TestClean(t *testing.T) {
	controllertest.Run(t, "testdata/clean*.txtar", controllers.Options{}, Cleaner())
}

// TestJudge goes around each of the days that decide.
func TestJudge(t *testing.T) {
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) string { return now.Add(-d).Format(time.DateOnly) }
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	for name, c := range map[string]struct {
		age    time.Duration
		labels map[string]string
		change func(*corev1.Secret)
		want   verdict
	}{
		"young":                   {age: year, want: keep},
		"old":                     {age: year + time.Second, want: mark},
		"used on the last day":    {age: 3 * year, labels: map[string]string{lastUsed: ago(year)}, want: keep},
		"used a day too early":    {age: 3 * year, labels: map[string]string{lastUsed: ago(year + day)}, want: mark},
		"used who knows when":     {age: 3 * year, labels: map[string]string{lastUsed: "yesterday"}, want: keep},
		"marked on the last day":  {age: 3 * year, labels: map[string]string{invalidSince: ago(year)}, want: keep},
		"marked a day before":     {age: 3 * year, labels: map[string]string{invalidSince: ago(year + day)}, want: remove},
		"marked who knows when":   {age: 3 * year, labels: map[string]string{invalidSince: "once"}, want: mark},
		"marked, and used lately": {age: 3 * year, labels: map[string]string{invalidSince: ago(2 * year), lastUsed: ago(day)}, want: keep},
		"going":                   {age: 3 * year, change: func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: now} }, want: keep},
		"another type":            {age: 3 * year, change: func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, want: keep},
	} {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, CreationTimestamp: metav1.NewTime(now.Add(-c.age))}, Type: corev1.SecretTypeServiceAccountToken}
		if c.change != nil {
			c.change(s)
		}
		if got := judge(s, now, year); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestReferences has a pod that refers to secrets in every way there is.
func TestReferences(t *testing.T) {
	local := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	env := func(name string) []corev1.EnvVar {
		return []corev1.EnvVar{{}, {ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: *local(name)}}}}
	}
	from := func(name string) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{{}, {SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *local(name)}}}
	}
	volumes := []corev1.VolumeSource{
		{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}},
		{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}, {Secret: &corev1.SecretProjection{LocalObjectReference: *local("projected")}}}}},
		{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "azure"}},
		{CephFS: &corev1.CephFSVolumeSource{SecretRef: local("ceph")}},
		{Cinder: &corev1.CinderVolumeSource{SecretRef: local("cinder")}},
		{FlexVolume: &corev1.FlexVolumeSource{SecretRef: local("flex")}},
		{RBD: &corev1.RBDVolumeSource{SecretRef: local("rbd")}},
		{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: local("scale")}},
		{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: local("iscsi")}},
		{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: local("storageos")}},
		{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: local("csi")}},
		{CSI: &corev1.CSIVolumeSource{}}, {EmptyDir: &corev1.EmptyDirVolumeSource{}},
	}
	p := &corev1.PodSpec{
		ImagePullSecrets:    []corev1.LocalObjectReference{*local("pull")},
		InitContainers:      []corev1.Container{{Env: env("init")}},
		Containers:          []corev1.Container{{Env: env("key"), EnvFrom: from("all")}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{EnvFrom: from("ephemeral")}}},
	}
	for _, v := range volumes {
		p.Volumes = append(p.Volumes, corev1.Volume{VolumeSource: v})
	}
	got := map[string]bool{}
	references(p, func(name string) { got[name] = true })
	want := strings.Fields("all azure ceph cinder csi ephemeral flex init iscsi key projected pull rbd scale secret storageos")
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
