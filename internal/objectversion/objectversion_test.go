// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package objectversion_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/objectversion"
)

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"9", "10", true}, {"10", "9", false}, {"9", "9", false}, {"", "9", false}, {"9", "", false}, {"x", "9", false}} {
		if got := objectversion.Older(&metav1.ObjectMeta{ResourceVersion: c.a}, &metav1.ObjectMeta{ResourceVersion: c.b}); got != c.want {
			t.Errorf("%q older than %q: %v", c.a, c.b, got)
		}
	}
}
