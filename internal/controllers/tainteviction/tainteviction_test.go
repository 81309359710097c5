// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package tainteviction

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Metrics: metrics}, Controller())
	want := []string{"pod_deletion_duration_seconds{} 8", "pod_deletions_total{} 8"}
	if diff := cmp.Diff(want, controllertest.Counted(t, counted, "taint_eviction_controller_")); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

func TestGrace(t *testing.T) {
	taints := []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoExecute}, {Key: "b", Effect: corev1.TaintEffectNoExecute}}
	tolerates := func(key string, seconds int64) corev1.Toleration {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, TolerationSeconds: &seconds}
		if seconds == 0 {
			t.TolerationSeconds = nil
		}
		return t
	}
	for _, c := range []struct {
		name        string
		tolerations []corev1.Toleration
		want        time.Duration
		bounded     bool
	}{
		{"none", nil, never, true},
		{"one of two", []corev1.Toleration{tolerates("a", 0)}, never, true},
		{"for ever", []corev1.Toleration{tolerates("a", 0), tolerates("b", 0)}, 0, false},
		{"the shortest", []corev1.Toleration{tolerates("a", 30), tolerates("b", 20)}, 20 * time.Second, true},
		{"one for ever", []corev1.Toleration{tolerates("a", 0), tolerates("b", 20)}, 20 * time.Second, true},
		{"the first that matches", []corev1.Toleration{tolerates("a", 30), tolerates("", 20), tolerates("b", 10)}, 20 * time.Second, true},
		{"negative", []corev1.Toleration{tolerates("", -5)}, 0, true},
		{"longer than time", []corev1.Toleration{tolerates("", 1<<62)}, 100 * 365 * 24 * time.Hour, true},
	} {
		if got, bounded := grace(taints, c.tolerations); got != c.want || bounded != c.bounded {
			t.Errorf("%s: got %v, %t, want %v, %t", c.name, got, bounded, c.want, c.bounded)
		}
	}
}
