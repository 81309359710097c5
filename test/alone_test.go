// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
)

const (
	aloneTest    = unsharetest.Variable
	builtProgram = "MORTISE_TEST_BINARY" // the binary that a test runs which is alone
)

// alone runs the test that calls it as if it were alone on the machine, see [unsharetest.Alone].
func alone(t *testing.T) bool {
	t.Helper()
	return unsharetest.Alone(t, func() []string {
		path, err := binary()
		if err != nil {
			t.Fatal(err)
		}
		return []string{builtProgram + "=" + path}
	})
}
