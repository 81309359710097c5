// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicetaint

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Metrics: metrics}, Controller())
	want := []string{"pod_deletion_duration_seconds{} 2", "pod_deletions_total{} 2"}
	if diff := cmp.Diff(want, controllertest.Counted(t, counted, "device_taint_eviction_controller_")); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
