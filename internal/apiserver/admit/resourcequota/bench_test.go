// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import "testing"

// TestCostsNothing checks that a request in a namespace without quotas costs only a look-up.
func TestCostsNothing(t *testing.T) {
	other := newQuota("q", amounts("configmaps", "1"), amounts("configmaps", "1"))
	other.Namespace = "other"
	p, b := setup(t, "", other)
	a := configMap("m")
	if n := testing.AllocsPerRun(100, func() {
		if err := p.Validate(t.Context(), b, a); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkValidate measures the plug-in alone: without quotas, with a quota that does not match the resource, and with
// one that does, whose write costs nothing here.
func BenchmarkValidate(b *testing.B) {
	for _, c := range []struct {
		name  string
		setup func(testing.TB) (*plugin, *backend)
	}{
		{"without", func(t testing.TB) (*plugin, *backend) { return setup(t, "") }},
		{"other", func(t testing.TB) (*plugin, *backend) {
			return setup(t, "", newQuota("q", amounts("pods", "1"), amounts("pods", "0")))
		}},
		{"with", func(t testing.TB) (*plugin, *backend) {
			return setup(t, "", newQuota("q", amounts("configmaps", "1000000000"), amounts("configmaps", "0")))
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, back := c.setup(b)
			b.ReportAllocs()
			for b.Loop() {
				a := configMap("m")
				if err := p.Validate(b.Context(), back, a); err != nil {
					b.Fatal(err)
				}
				a.End(nil)
			}
		})
	}
}
