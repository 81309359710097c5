// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localprovisioner

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
	"github.com/mortise-dev/mortise/internal/controllers/volumebinder"
)

// The scenarios run with the controller that binds claims and releases volumes.
func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller(), volumebinder.Controller())
}
