// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package serviceaccount_test

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/serviceaccount"
)

func TestScenarios(t *testing.T) {
	admittest.Run(t, serviceaccount.New(serviceaccount.Options{Suffix: func() string { return "abcde" }}))
}
