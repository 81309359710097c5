// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package alwaysdeny_test

import (
	"log/slog"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/alwaysdeny"
)

func TestScenarios(t *testing.T) {
	p := alwaysdeny.New()
	if err := p.(admit.Hosted).Join(&admit.Host{Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}
