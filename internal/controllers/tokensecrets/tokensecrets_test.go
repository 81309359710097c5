// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package tokensecrets

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

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
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, CreationTimestamp: metav1.NewTime(now.Add(-c.age))},
			Type: corev1.SecretTypeServiceAccountToken}
		if c.change != nil {
			c.change(s)
		}
		if got := judge(s, now, year); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestMounts has pods that refer to secrets, to what is no secret, and from another namespace.
func TestMounts(t *testing.T) {
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	add := func(namespace, name string, spec corev1.PodSpec) {
		t.Helper()
		if err := pods.Add(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	add("ns", "pulls", corev1.PodSpec{ServiceAccountName: "account", ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}})
	add("ns", "mounts", corev1.PodSpec{Volumes: []corev1.Volume{
		{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}},
		{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "map"}}}},
	}})
	add("other", "pulls", corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{{Name: "elsewhere"}}})
	got, err := (&cleaner{pods: pods}).mounts("ns")
	if diff := cmp.Diff(map[string]bool{"pull": true, "secret": true}, got); err != nil || diff != "" {
		t.Errorf("error %v, -want +got:\n%s", err, diff)
	}
}
