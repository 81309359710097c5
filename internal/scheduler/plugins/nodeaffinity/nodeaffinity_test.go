// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeaffinity_test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeaffinity"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

func TestScenarios(t *testing.T) {
	schedulertest.Run(t, profile.Registry{{Name: nodeaffinity.Name, New: nodeaffinity.New}})
}
