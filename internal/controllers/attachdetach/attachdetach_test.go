// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

func TestScenariosWithoutForce(t *testing.T) {
	controllertest.Run(t, "testdata/noforce/*.txtar", controllers.Options{},
		controllertest.Configured(t, Controller(), "disable-force-detach-on-timeout=true"))
}

func TestScenariosWithoutSync(t *testing.T) {
	controllertest.Run(t, "testdata/nosync/*.txtar", controllers.Options{},
		controllertest.Configured(t, Controller(), "disable-attach-detach-reconcile-sync=true"))
}
