// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicecidr

import (
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

func TestDecide(t *testing.T) {
	named := func(name string, cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	going := func(c *networkingv1.ServiceCIDR) *networkingv1.ServiceCIDR {
		c.DeletionTimestamp = &metav1.Time{}
		return c
	}
	for _, c := range []struct {
		name   string
		self   *networkingv1.ServiceCIDR
		others []*networkingv1.ServiceCIDR
		used   string
		want   step
	}{
		{"stays", named("a", "10.0.0.0/24"), nil, "10.0.0.1", ready},
		{"unused", going(named("a", "10.0.0.0/24")), nil, "10.0.1.1", release},
		{"used", going(named("a", "10.0.0.0/24")), nil, "10.0.0.1", held},
		{"inside of another", going(named("a", "10.0.0.0/24")), []*networkingv1.ServiceCIDR{named("b", "10.0.0.0/16")}, "10.0.0.1", release},
		{"the same as another", going(named("a", "10.0.0.0/24")), []*networkingv1.ServiceCIDR{named("b", "10.0.0.0/24")}, "10.0.0.1", release},
		{"another has the address", going(named("a", "10.0.0.0/16")), []*networkingv1.ServiceCIDR{named("b", "10.0.0.0/24")}, "10.0.0.1",
			release},
		{"another has others", going(named("a", "10.0.0.0/16")), []*networkingv1.ServiceCIDR{named("b", "10.0.1.0/24")}, "10.0.0.1", held},
		{"one family is inside of another", going(named("a", "10.0.0.0/24", "fd00::/112")),
			[]*networkingv1.ServiceCIDR{named("b", "10.0.0.0/16")}, "fd00::1", held},
		{"the other family is not used", going(named("a", "10.0.0.0/24", "fd00::/112")), []*networkingv1.ServiceCIDR{named("b", "10.0.0.0/16")},
			"10.0.0.1", release},
	} {
		all := append([]*networkingv1.ServiceCIDR{c.self}, c.others...)
		if got := decide(c.self, all, []netip.Addr{netip.MustParseAddr(c.used)}); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
