// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodevolumelimits_test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodevolumelimits"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

func TestScenarios(t *testing.T) {
	schedulertest.Run(t, profile.Registry{{Name: nodevolumelimits.Name, New: nodevolumelimits.New}})
}
