// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
	"github.com/mortise-dev/mortise/internal/controllers/replicaset"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/rolling.txtar", controllers.Options{}, Controller())
	controllertest.Run(t, "testdata/together.txtar", controllers.Options{}, Controller(), replicaset.Controller())
}
