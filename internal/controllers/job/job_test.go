// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

func FuzzIndexes(f *testing.F) {
	f.Add("0-2,5", 10)
	f.Add("1,2,4-9", 7)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		set := parseIndexes(text, min(max(limit, 0), 1000))
		if again := parseIndexes(set.String(), 1000); again.String() != set.String() {
			t.Fatalf("%q reads as %q, which reads as %q", text, set, again)
		}
	})
}
