// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"strings"
	"testing"
	"time"
)

func FuzzRead(f *testing.F) {
	f.Add("imagePolicy: {kubeConfigFile: /x, allowTTL: 50, denyTTL: -1, retryBackoff: 500, defaultAllow: true}")
	f.Fuzz(func(t *testing.T, in string) {
		c, err := read(strings.NewReader(in))
		if err == nil && (c.allowTTL < 0 || c.allowTTL > time.Hour || c.denyTTL < 0 || c.denyTTL > time.Hour || c.backoff < 0 ||
			c.backoff > time.Hour) {
			t.Errorf("%q was read as %+v", in, c)
		}
	})
}
