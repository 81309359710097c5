// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localprovisioner

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
	"github.com/mortise-dev/mortise/internal/controllers/volumebinder"
)

// The life of a volume needs the controller that binds claims and releases volumes.
func TestLife(t *testing.T) {
	controllertest.Run(t, "testdata/life.txtar", controllers.Options{}, Controller(), volumebinder.Controller())
}

func TestRefused(t *testing.T) {
	controllertest.Run(t, "testdata/refused.txtar", controllers.Options{}, Controller())
}
