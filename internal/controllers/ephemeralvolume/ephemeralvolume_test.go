// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package ephemeralvolume

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Metrics: metrics}, Controller())
	want := []string{"create_failures_total{} 0", "create_total{} 3"}
	if diff := cmp.Diff(want, controllertest.Counted(t, counted, "ephemeral_volume_controller_")); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}
