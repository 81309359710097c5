// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodettl

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

// TestNext: going up and coming down the steps change at other sizes.
func TestNext(t *testing.T) {
	at := 0
	for _, c := range []struct{ nodes, seconds int }{
		{0, 0}, {100, 0}, {101, 15}, {90, 15}, {89, 0}, {501, 30}, {450, 30}, {449, 15}, {1001, 60}, {900, 60}, {899, 30}, {2001, 300},
		{1800, 300},
		{1799, 60}, {1 << 40, 300}, {0, 0},
	} {
		at = next(at, c.nodes)
		if got := steps[at].seconds; got != c.seconds {
			t.Errorf("%d nodes: %d s, want %d", c.nodes, got, c.seconds)
		}
	}
}
