// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

// TestPrefix: both parts of a long name stay recognisable.
func TestPrefix(t *testing.T) {
	for _, c := range []struct{ pod, claim, want string }{
		{"web", "gpu", "web-gpu-"},
		{strings.Repeat("p", 100), "gpu", strings.Repeat("p", 54) + "-g"},
		{strings.Repeat("p", 50), strings.Repeat("c", 50), strings.Repeat("p", 27) + "-" + strings.Repeat("c", 27)},
	} {
		if got := prefix(c.pod, c.claim); got != c.want {
			t.Errorf("%s, %s: %s, want %s", c.pod, c.claim, got, c.want)
		}
	}
}
