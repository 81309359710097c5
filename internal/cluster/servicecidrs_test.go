// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"
)

// TestServiceCIDRs reads one range, or one of each IP family.
func TestServiceCIDRs(t *testing.T) {
	for text, want := range map[string]string{
		"10.96.0.0/16":                 "[10.96.0.0/16]",
		"10.96.1.2/16, fd00:96::1/112": "[10.96.0.0/16 fd00:96::/112]",
		"fd00:96::/112,10.96.0.0/16":   "[fd00:96::/112 10.96.0.0/16]",
		"10.96.0.0/16,10.97.0.0/16":    "",
		"10.96.0.0/16,":                "",
		"x":                            "",
	} {
		got, err := parseServiceCIDRs(text)
		if (err != nil) != (want == "") || err == nil && fmt.Sprint(got) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
