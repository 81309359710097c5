// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podsecurity_test

import (
	"flag"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/podsecurity"
)

var _ = flag.Bool("update", false, "write the golden files")

func TestScenarios(t *testing.T) {
	plugin, err := podsecurity.New()
	if err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, plugin)
}
