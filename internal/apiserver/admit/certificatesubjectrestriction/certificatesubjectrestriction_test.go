// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificatesubjectrestriction

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
)

func TestScenarios(t *testing.T) { admittest.Run(t, New()) }
