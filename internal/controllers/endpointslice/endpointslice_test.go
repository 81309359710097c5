// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpointslice

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	metrics, counted := controllertest.Meters(t)
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{Metrics: metrics}, Controller())
	if len(controllertest.Counted(t, counted, "endpoint_slice_controller_syncs")) == 0 {
		t.Error("the reconciler's metrics are not told")
	}
}

func TestBatch(t *testing.T) {
	controllertest.Run(t, "testdata/batch/*.txtar", controllers.Options{},
		controllertest.Configured(t, Controller(), "endpointslice-updates-batch-period=5s", "max-endpoints-per-slice=1"))
}
