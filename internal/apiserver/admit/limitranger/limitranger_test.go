// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package limitranger_test

import (
	"flag"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/limitranger"
)

var _ = flag.Bool("update", false, "write the golden files")

func TestScenarios(t *testing.T) { admittest.Run(t, limitranger.New()) }
