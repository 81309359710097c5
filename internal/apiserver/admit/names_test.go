// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import "testing"

// TestCheckName checks the errors of invalid names, in client-go's words.
func TestCheckName(t *testing.T) {
	for name, want := range map[string]string{
		"a": "", "A.b:c": "", "": "resource name may not be empty", "a/b": `invalid resource name "a/b": [may not contain '/']`,
		"..": `invalid resource name "..": [may not be '..']`,
	} {
		got := ""
		if err := CheckName(name); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}
