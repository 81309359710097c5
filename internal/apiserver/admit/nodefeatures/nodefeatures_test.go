// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodefeatures_test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/nodefeatures"
)

func TestScenarios(t *testing.T) {
	p, err := nodefeatures.New("1.37.1")
	if err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}

// TestRelease: the plug-in is not made for a release that it cannot compare with others.
func TestRelease(t *testing.T) {
	if p, err := nodefeatures.New("latest"); err == nil {
		t.Errorf("made %v for no release", p)
	}
}
