// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extendedresources_test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/extendedresources"
)

func TestScenarios(t *testing.T) { admittest.Run(t, extendedresources.New()) }
