// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"testing"
)

// Under the name kubectl the program is kubectl, whatever its file is called.
func TestKubectlByName(t *testing.T) {
	for program, link := range map[string]string{
		"/usr/bin/mortise": "kubectl", "/opt/mortise-0.1": "kubectl", "/opt/mortise.exe": "kubectl.exe",
	} {
		got := linkName(program)
		if args := Arguments([]string{"/cache/" + got, "get", "pods"}); got != link || !slices.Equal(args, []string{"kubectl", "get", "pods"}) {
			t.Errorf("%s: link %s, arguments %q", program, got, args)
		}
	}
	if args := Arguments([]string{"/usr/bin/mortise", "up"}); !slices.Equal(args, []string{"up"}) {
		t.Errorf("arguments %q", args)
	}
	if args := Arguments(nil); args != nil {
		t.Errorf("arguments %q", args)
	}
}
