// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podgc

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Metrics: metrics},
		controllertest.Configured(t, Controller(), "terminated-pod-gc-threshold=3"))
	want := []string{
		"force_delete_pods_total{namespace=default,reason=orphaned} 1",
		"force_delete_pods_total{namespace=default,reason=out-of-service} 1",
		"force_delete_pods_total{namespace=default,reason=terminated} 1",
	}
	if diff := cmp.Diff(want, controllertest.Counted(t, counted, "pod_gc_collector_")); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
