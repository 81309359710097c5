// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package door

import "testing"

func TestEnter(t *testing.T) {
	var d Door
	if _, err := d.Enter("ann", 30); err != nil {
		t.Error(err)
	}
	if _, err := d.Enter("bob", 17); err == nil {
		t.Error("a child came in")
	}
	if _, err := d.Enter("", 30); err == nil {
		t.Error("nobody came in")
	}
}
