// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstraptokens

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Signer(), Cleaner())
}

// TestSign wants what upstream's cluster-bootstrap library makes of the same.
func TestSign(t *testing.T) {
	got, err := sign("Hello from the other side. I must have called a thousand times.", "joshua", "my voice is my passcode")
	if want := "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}
