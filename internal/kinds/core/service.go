// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Service describes services, with the subresources proxy and status. Their cluster IPs come from ranges, one for each of the cluster's
// families, the preferred first; their node ports from 30000 to 32767.
func Service(ranges []netip.Prefix, dial egress.Dial) *resource.Descriptor {
	check := upstream.Service()
	status := kind.Status(func(svc, old *corev1.Service) { svc.Spec = old.Spec }, check.Status)
	status.Strategy.CreateOnUpdate = true // as upstream, which returns true for both paths
	status.Strategy.Warn = kind.Warn(func(svc, _ *corev1.Service) []string {
		var warnings []string
		for i, in := range svc.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), in.IP)...)
			}
		}
		return warnings
	})
	d := kind.Describe[*corev1.Service](resource.Descriptor{
		Resource:   "services",
		Kind:       "Service",
		ShortNames: []string{"svc"},
		Categories: []string{"all"},
		Namespaced: true,
		Prefix:     "services/specs",
		FieldNames: []string{"spec.clusterIP", "spec.type"},
		Fields: kind.Fields(func(svc *corev1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": svc.Spec.ClusterIP, "spec.type": string(svc.Spec.Type)}
		}),
		Strategy: resource.Strategy{
			PrepareCreate: kind.OnCreate(func(svc *corev1.Service) { svc.Status = corev1.ServiceStatus{} }),
			PrepareUpdate: kind.OnUpdate(func(svc, old *corev1.Service) {
				svc.Status = old.Status
				dropForType(svc, old)
			}),
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			ReturnDeleted:  true,
			Warn:           kind.Warn(func(svc, _ *corev1.Service) []string { return serviceWarnings(svc) }),
			Allocate:       newAllocator(ranges).allocate,
			CreateOnUpdate: true,
		},
		Subresources: []resource.Subresource{serviceProxy(familyOfAddr(ranges[0].Addr()), dial), status},
	})
	d.Codec = serviceCodec{d.Codec, familyOfAddr(ranges[0].Addr())}
	return d
}

// serviceCodec completes old stored services when it reads them, and hides fields that they should not have.
type serviceCodec struct {
	resource.Codec
	preferred corev1.IPFamily
}

// Decode implements [resource.Codec].
func (c serviceCodec) Decode(data []byte) (resource.Object, error) {
	obj, err := c.Codec.Decode(data)
	if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	spec := &svc.Spec
	if !hasClusterIP(svc) {
		spec.InternalTrafficPolicy = nil
		return svc, nil
	}
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if len(spec.IPFamilies) > 0 || spec.ClusterIP != corev1.ClusterIPNone && len(spec.ClusterIPs) == 0 {
		return svc, nil
	}
	policy := corev1.IPFamilyPolicySingleStack
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0:
		policy = corev1.IPFamilyPolicyRequireDualStack
		spec.IPFamilies = []corev1.IPFamily{c.preferred, otherFamily(c.preferred)}
	case spec.ClusterIP == corev1.ClusterIPNone:
		spec.IPFamilies = []corev1.IPFamily{c.preferred}
	default:
		for _, ip := range spec.ClusterIPs {
			spec.IPFamilies = append(spec.IPFamilies, familyOf(ip))
		}
		if len(spec.ClusterIPs) == 2 {
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
	}
	spec.IPFamilyPolicy = &policy
	return svc, nil
}

// dropForType clears the fields that a service's new type does not use, if the client did not touch them: the server most likely allocated
// them.
func dropForType(svc, old *corev1.Service) {
	if hasClusterIP(old) && !hasClusterIP(svc) {
		if sameIPs(svc, old) && svc.Spec.ClusterIP == old.Spec.ClusterIP {
			svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
		}
		if slices.Equal(svc.Spec.IPFamilies, old.Spec.IPFamilies) {
			svc.Spec.IPFamilies = nil
		}
		if policyOf(svc) == policyOf(old) {
			svc.Spec.IPFamilyPolicy = nil
		}
	}
	if typeWithPorts(old) && !typeWithPorts(svc) && !newPorts(svc, old) {
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = 0
		}
	}
	if checksHealth(old) && !checksHealth(svc) && svc.Spec.HealthCheckNodePort == old.Spec.HealthCheckNodePort {
		svc.Spec.HealthCheckNodePort = 0
	}
	balanced, wasBalanced := svc.Spec.Type == corev1.ServiceTypeLoadBalancer, old.Spec.Type == corev1.ServiceTypeLoadBalancer
	if wasBalanced && !balanced {
		if a, b := svc.Spec.AllocateLoadBalancerNodePorts, old.Spec.AllocateLoadBalancerNodePorts; a != nil && b != nil && *a == *b {
			svc.Spec.AllocateLoadBalancerNodePorts = nil
		}
		if a, b := svc.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass; a != nil && b != nil && *a == *b {
			svc.Spec.LoadBalancerClass = nil
		}
	}
	if external(old) && !external(svc) && svc.Spec.ExternalTrafficPolicy == old.Spec.ExternalTrafficPolicy {
		svc.Spec.ExternalTrafficPolicy = ""
	}
	if !balanced {
		svc.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

func hasClusterIP(svc *corev1.Service) bool { return svc.Spec.Type != corev1.ServiceTypeExternalName }

// typeWithPorts reports whether the service's type has node ports.
func typeWithPorts(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeNodePort || svc.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// checksHealth reports whether the service has a health-check port on each node.
func checksHealth(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// external reports whether the service can be reached from outside.
func external(svc *corev1.Service) bool {
	return typeWithPorts(svc) || svc.Spec.Type == corev1.ServiceTypeClusterIP && len(svc.Spec.ExternalIPs) > 0
}

func sameIPs(a, b *corev1.Service) bool { return slices.Equal(a.Spec.ClusterIPs, b.Spec.ClusterIPs) }

func policyOf(svc *corev1.Service) corev1.IPFamilyPolicy {
	if svc.Spec.IPFamilyPolicy == nil {
		return ""
	}
	return *svc.Spec.IPFamilyPolicy
}

// newPorts reports whether the service has node ports that the old service lacks.
func newPorts(svc, old *corev1.Service) bool {
	had := nodePorts(old)
	return slices.ContainsFunc(nodePorts(svc), func(p int32) bool { return !slices.Contains(had, p) })
}

// nodePorts returns the node ports of a service.
func nodePorts(svc *corev1.Service) []int32 {
	var out []int32
	for _, p := range svc.Spec.Ports {
		if p.NodePort != 0 {
			out = append(out, p.NodePort)
		}
	}
	return out
}

// serviceWarnings returns warnings about fields that this service ignores, deprecated ones, and malformed addresses.
func serviceWarnings(svc *corev1.Service) []string {
	var out []string
	spec := field.NewPath("spec")
	if _, ok := svc.Annotations[corev1.DeprecatedAnnotationTopologyAwareHints]; ok {
		out = append(out, fmt.Sprintf("annotation %s is deprecated, please use %s instead", corev1.DeprecatedAnnotationTopologyAwareHints,
			corev1.AnnotationTopologyMode))
	}
	headless := svc.Spec.Type == corev1.ServiceTypeClusterIP && svc.Spec.ClusterIP == corev1.ClusterIPNone
	if svc.Spec.ClusterIP != corev1.ClusterIPNone && svc.Spec.ClusterIP != "" {
		for i, ip := range svc.Spec.ClusterIPs {
			out = append(out, validation.GetWarningsForIP(spec.Child("clusterIPs").Index(i), ip)...)
		}
	}
	if headless {
		if svc.Spec.LoadBalancerIP != "" {
			out = append(out, "spec.loadBalancerIP is ignored for headless services")
		}
		if len(svc.Spec.ExternalIPs) > 0 {
			out = append(out, "spec.externalIPs is ignored for headless services")
		}
		if svc.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			out = append(out, "spec.SessionAffinity is ignored for headless services")
		}
	}
	for i, ip := range svc.Spec.ExternalIPs {
		out = append(out, validation.GetWarningsForIP(spec.Child("externalIPs").Index(i), ip)...)
	}
	if len(svc.Spec.ExternalIPs) > 0 && !headless && svc.Spec.Type != corev1.ServiceTypeExternalName {
		out = append(out, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if svc.Spec.LoadBalancerIP != "" {
		out = append(out, validation.GetWarningsForIP(spec.Child("loadBalancerIP"), svc.Spec.LoadBalancerIP)...)
	}
	for i, cidr := range svc.Spec.LoadBalancerSourceRanges {
		out = append(out, validation.GetWarningsForCIDR(spec.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName && len(svc.Spec.ExternalIPs) > 0 {
		out = append(out, fmt.Sprintf("spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName))
	}
	if svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ExternalName != "" {
		out = append(out, fmt.Sprintf("spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName))
	}
	if d := svc.Spec.TrafficDistribution; d != nil && *d == corev1.ServiceTrafficDistributionPreferClose {
		out = append(out, fmt.Sprintf("spec.trafficDistribution: %q is deprecated; use %q", corev1.ServiceTrafficDistributionPreferClose,
			corev1.ServiceTrafficDistributionPreferSameZone))
	}
	return out
}
