// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderesources_test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/scheduler/plugins/noderesources"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

func TestScenarios(t *testing.T) {
	schedulertest.Run(t, profile.Registry{{Name: noderesources.FitName, New: noderesources.NewFit},
		{Name: noderesources.BalancedName, New: noderesources.NewBalanced}})
}
