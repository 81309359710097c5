// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package alwaysadmit_test

import (
	"log/slog"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/alwaysadmit"
)

func TestScenarios(t *testing.T) {
	p := alwaysadmit.New()
	if err := p.(admit.Hosted).Join(&admit.Host{Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}
