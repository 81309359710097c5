// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// proxyNameLabel on a Service means that another proxy implements it.
const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

// servicePort is one port of a Service in one family.
type servicePort struct {
	service  types.NamespacedName
	name     string // of the port
	protocol string // tcp, udp or sctp
	port     int32
	nodePort int32
	cluster  netip.Addr
	external []netip.Addr
	balanced []netip.Addr // of the load balancer, with ipMode VIP
	sources  []netip.Prefix
	affinity time.Duration // 0: none

	externalLocal, internalLocal bool
}

// isExternal reports whether the port has other addresses than the cluster IP.
func (p *servicePort) isExternal() bool {
	return p.nodePort != 0 || len(p.external) > 0 || len(p.balanced) > 0
}

// usesCluster reports whether traffic may go to endpoints on other nodes. External traffic that starts on this node may, whatever the
// policy.
func (p *servicePort) usesCluster() bool { return !p.internalLocal || p.isExternal() }

func (p *servicePort) usesLocal() bool {
	return p.internalLocal || p.externalLocal && p.isExternal()
}

// portsOf reads a Service; nil: there is nothing to do for it in this family.
func portsOf(svc *corev1.Service, f family) []servicePort {
	if svc == nil || svc.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	if _, other := svc.Labels[proxyNameLabel]; other {
		return nil
	}
	cluster := clusterIP(svc, f)
	if !cluster.IsValid() {
		return nil
	}
	base := servicePort{
		service: types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}, cluster: cluster,
		externalLocal: externallyAccessible(svc) && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		internalLocal: svc.Spec.InternalTrafficPolicy != nil && *svc.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		external:      addresses(svc.Spec.ExternalIPs, f),
		sources:       sourceRanges(svc, f),
	}
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
			base.balanced = append(base.balanced, addresses([]string{in.IP}, f)...)
		}
	}
	if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		base.affinity = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			base.affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	out := make([]servicePort, 0, len(svc.Spec.Ports))
	for _, p := range svc.Spec.Ports {
		one := base
		one.name, one.port, one.nodePort, one.protocol = p.Name, p.Port, p.NodePort, protocolOf(p.Protocol)
		if slices.Contains([]string{"tcp", "udp", "sctp"}, one.protocol) {
			out = append(out, one)
		}
	}
	return out
}

func protocolOf(p corev1.Protocol) string {
	if p == "" {
		return "tcp"
	}
	return strings.ToLower(string(p))
}

// clusterIP returns a Service's cluster IP in a family, or an invalid address.
func clusterIP(svc *corev1.Service, f family) netip.Addr {
	all := svc.Spec.ClusterIPs
	if len(all) == 0 {
		all = []string{svc.Spec.ClusterIP}
	}
	for _, a := range addresses(all, f) {
		return a
	}
	return netip.Addr{}
}

// addresses returns the addresses of a family. It leaves out invalid ones ("None"), and addresses with a zone: netip accepts any text as a
// zone, and the text would become part of a rule.
func addresses(texts []string, f family) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		if a, err := netip.ParseAddr(t); err == nil && a.Zone() == "" && f.has(a.Unmap()) && !slices.Contains(out, a.Unmap()) {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// sourceRanges returns the source ranges of a load balancer; nil means any source.
func sourceRanges(svc *corev1.Service, f family) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range svc.Spec.LoadBalancerSourceRanges {
		p, err := netip.ParsePrefix(strings.TrimSpace(t))
		if err != nil || !f.has(p.Addr()) {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		p = p.Masked()
		// nft rejects overlapping ranges: the wider one stays.
		if slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Overlaps(p) }) {
			continue
		}
		out = append(slices.DeleteFunc(out, p.Overlaps), p)
	}
	return out
}

func externallyAccessible(svc *corev1.Service) bool {
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return true
	}
	return len(svc.Spec.ExternalIPs) > 0
}

// healthPort returns the port at which a load balancer checks whether this node has endpoints; 0: there is none.
func healthPort(svc *corev1.Service) int32 {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return 0
	}
	return svc.Spec.HealthCheckNodePort
}
