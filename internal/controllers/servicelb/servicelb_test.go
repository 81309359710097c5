// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

func TestPoolScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/pool/*.txtar", controllers.Options{},
		controllertest.Configured(t, Controller(), "load-balancer-pool=192.0.2.50-192.0.2.51"))
}

func TestExternalCloud(t *testing.T) {
	controllertest.Run(t, "testdata/external/*.txtar", controllers.Options{Cluster: controllers.Cluster{ExternalCloud: true}}, Controller())
}
