// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeports_test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeports"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

func TestScenarios(t *testing.T) {
	schedulertest.Run(t, profile.Registry{{Name: nodeports.Name, New: nodeports.New}})
}
