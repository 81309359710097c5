// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package clustertrustbundleattest

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
)

// TestScenarios: the user may attest for example.com/a by name, and for all signers of example.org.
func TestScenarios(t *testing.T) {
	p := New()
	if err := p.(admit.Hosted).Join(admittest.SignersHost("attest")); err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}
