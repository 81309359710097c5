// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/internal/controllers"
)

// finalizer keeps a Service until its load balancer is gone.
const finalizer = "service.kubernetes.io/load-balancer-cleanup"

// portsUnavailable is the reason of the condition LoadBalancerPortsError of a Service that waits.
const portsUnavailable = "PortsUnavailable"

// claimOf reads what a Service asks for.
func claimOf(svc *corev1.Service) claim {
	c := claim{service: controllers.Key(svc), families: svc.Spec.IPFamilies, alone: isLocal(svc)}
	for _, p := range svc.Spec.Ports {
		one := port{p.Protocol, p.Port}
		if one.protocol == "" {
			one.protocol = corev1.ProtocolTCP
		}
		c.ports = append(c.ports, one)
	}
	if a, err := netip.ParseAddr(svc.Spec.LoadBalancerIP); err == nil && a.Zone() == "" {
		c.address = a.Unmap()
	}
	if len(c.families) == 0 {
		c.families = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	return c
}

// isLocal reports whether external traffic goes only to endpoints on the node that it reaches.
func isLocal(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// holds returns the addresses in a Service's status.
func holds(svc *corev1.Service) (out []netip.Addr) {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(in.IP); err == nil && a.Zone() == "" {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// served returns the Service as it is with what it got. Taken is why it got no more.
func served(svc *corev1.Service, c claim, g granted, announcers map[netip.Addr]string, now metav1.Time) *corev1.Service {
	out := svc.DeepCopy()
	if !slices.Contains(out.Finalizers, finalizer) {
		out.Finalizers = append(out.Finalizers, finalizer)
	}
	out.Status.LoadBalancer.Ingress = nil
	for _, a := range g.addresses {
		in := corev1.LoadBalancerIngress{IP: a.String(), IPMode: new(corev1.LoadBalancerIPModeVIP)}
		for _, p := range c.ports {
			in.Ports = append(in.Ports, corev1.PortStatus{Port: p.number, Protocol: p.protocol})
		}
		out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress, in)
	}
	annotate(out, v1alpha1.FormatLoadBalancerNodes(announcers))
	if g.taken == "" {
		dropCondition(out)
		return out
	}
	meta.SetStatusCondition(&out.Status.Conditions, metav1.Condition{
		Type: corev1.LoadBalancerPortsError, Status: metav1.ConditionTrue, Reason: portsUnavailable, Message: g.taken,
		ObservedGeneration: svc.Generation, LastTransitionTime: now,
	})
	return out
}

// cleared returns the Service as it is without a load balancer.
func cleared(svc *corev1.Service) *corev1.Service {
	out := svc.DeepCopy()
	out.Finalizers = slices.DeleteFunc(out.Finalizers, func(f string) bool { return f == finalizer })
	out.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	annotate(out, "")
	dropCondition(out)
	return out
}

func annotate(svc *corev1.Service, nodes string) {
	if nodes == "" {
		delete(svc.Annotations, v1alpha1.LoadBalancerNodesAnnotation)
		return
	}
	if svc.Annotations == nil {
		svc.Annotations = map[string]string{}
	}
	svc.Annotations[v1alpha1.LoadBalancerNodesAnnotation] = nodes
}

// dropCondition removes the condition that says what a Service waits for.
func dropCondition(svc *corev1.Service) {
	svc.Status.Conditions = slices.DeleteFunc(svc.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == corev1.LoadBalancerPortsError && c.Reason == portsUnavailable
	})
}

// patchTo returns the patch that makes one state of a Service the other; nil: they are equal.
func patchTo(have, want *corev1.Service) ([]byte, error) {
	if equality.Semantic.DeepEqual(have.ObjectMeta, want.ObjectMeta) && equality.Semantic.DeepEqual(have.Status, want.Status) {
		return nil, nil
	}
	part := func(svc *corev1.Service, uid types.UID) ([]byte, error) {
		return json.Marshal(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{UID: uid, Finalizers: svc.Finalizers, Annotations: svc.Annotations}, Status: svc.Status,
		})
	}
	before, err := part(have, "")
	if err != nil {
		return nil, fmt.Errorf("encode service: %w", err)
	}
	after, err := part(want, want.UID) // the patch is for no other Service with this name
	if err != nil {
		return nil, fmt.Errorf("encode service: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Service{})
	if err != nil {
		return nil, fmt.Errorf("compare service: %w", err)
	}
	return patch, nil
}
