// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestTruncate: ready addresses come before others, and each subset keeps its share.
func TestTruncate(t *testing.T) {
	type size struct{ ready, other int }
	for _, c := range []struct {
		name      string
		have      []size
		want      []size
		truncated bool
	}{
		{"just fits", []size{{600, 400}}, []size{{600, 400}}, false},
		{"others go", []size{{900, 300}}, []size{{900, 100}}, true},
		{"ready ones go too", []size{{1200, 300}}, []size{{1000, 0}}, true},
		{"by their share", []size{{900, 10}, {600, 10}}, []size{{600, 0}, {400, 0}}, true},
		{"the last has what is left", []size{{0, 500}, {0, 500}, {1, 500}}, []size{{0, 333}, {0, 333}, {1, 333}}, true},
	} {
		var sets []corev1.EndpointSubset
		for _, s := range c.have {
			sets = append(sets, corev1.EndpointSubset{Addresses: make([]corev1.EndpointAddress, s.ready),
				NotReadyAddresses: make([]corev1.EndpointAddress, s.other)})
		}
		if got := truncate(sets); got != c.truncated {
			t.Errorf("%s: truncated: %t", c.name, got)
		}
		for i, s := range sets {
			if got := (size{len(s.Addresses), len(s.NotReadyAddresses)}); got != c.want[i] {
				t.Errorf("%s: subset %d has %v, want %v", c.name, i, got, c.want[i])
			}
		}
	}
}
