// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestAddressesWithZones gives a Service, and its endpoints, addresses whose zones are the text of rules: no rule has any of it, and the
// addresses without a zone are served as if they were alone.
func TestAddressesWithZones(t *testing.T) {
	const zone = "%eth0; drop\nflush ruleset\n-A INPUT -j DROP"
	made := func(hostile bool) *plan {
		svc := makeService("web", []string{"fd00:96::7"}, balanced("2001:db8::5"),
			func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"2001:db8::6"} })
		list := makeSlice("web", at("fd00:244::2", "here"))
		list.AddressType = discoveryv1.AddressTypeIPv6
		if hostile {
			svc.Spec.ClusterIPs = append([]string{"fe80::1" + zone}, svc.Spec.ClusterIPs...)
			svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, "fe80::2"+zone)
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "fe80::3" + zone})
			svc.Spec.LoadBalancerSourceRanges = append(svc.Spec.LoadBalancerSourceRanges, "fe80::4"+zone+"/64")
			list.Endpoints = append(list.Endpoints, at("fe80::5"+zone, "here"), at("fd00:244::3"+zone, "there"))
		}
		return makePlan(svc, []*discoveryv1.EndpointSlice{list}, testView(true))
	}
	v, got, want := testView(true), made(true), made(false)
	if got == nil || want == nil {
		t.Fatal("there is no plan")
	}
	for language, pair := range map[string][2]string{
		"nft": {got.text(v.family), want.text(v.family)}, "iptables": {got.ipTables(v), want.ipTables(v)},
	} {
		if pair[0] != pair[1] || !strings.Contains(pair[0], "fd00:244::2") || strings.Contains(pair[0], "%") {
			t.Errorf("%s has rules\n%swant\n%s", language, pair[0], pair[1])
		}
	}
}
