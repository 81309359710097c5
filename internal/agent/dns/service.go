// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// The Service that the cluster DNS is known by.
const (
	serviceName = "kube-dns"
	proxyLabel  = "service.kubernetes.io/service-proxy-name"
	proxyName   = "mortise-dns"
	number      = 10 // of its address among those of the range
)

// Ensure creates the Service kube-dns with the tenth address of each range, if there is none. It returns the addresses for
// pods, and whether this DNS serves them: it does not change a Service of others.
func Ensure(ctx context.Context, client kubernetes.Interface, ranges []netip.Prefix) (addresses []netip.Addr, ours bool, err error) {
	services := client.CoreV1().Services(metav1.NamespaceSystem)
	svc, err := services.Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		svc, err = services.Create(ctx, wanted(ranges), metav1.CreateOptions{})
		if apierrors.IsInvalid(err) { // the address is in use: any other will do
			without := wanted(ranges)
			without.Spec.ClusterIP, without.Spec.ClusterIPs = "", nil
			svc, err = services.Create(ctx, without, metav1.CreateOptions{})
		}
		if apierrors.IsAlreadyExists(err) {
			svc, err = services.Get(ctx, serviceName, metav1.GetOptions{})
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("make service %s: %w", serviceName, err)
	}
	for _, text := range clusterIPs(svc) {
		if a, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, a)
		}
	}
	if len(addresses) == 0 {
		return nil, false, fmt.Errorf("service %s has no address", serviceName)
	}
	return addresses, svc.Labels[proxyLabel] == proxyName, nil
}

func wanted(ranges []netip.Prefix) *corev1.Service {
	port := func(name string, protocol corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: protocol, Port: 53, TargetPort: intstr.FromInt32(53)}
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: serviceName, Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{
				"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS", proxyLabel: proxyName,
			},
		},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Ports: []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)}},
	}
	for _, r := range ranges {
		if a := nth(r, number); a.IsValid() {
			svc.Spec.ClusterIPs = append(svc.Spec.ClusterIPs, a.String())
		}
	}
	if len(svc.Spec.ClusterIPs) > 0 {
		svc.Spec.ClusterIP = svc.Spec.ClusterIPs[0]
	}
	if len(ranges) > 1 {
		policy := corev1.IPFamilyPolicyPreferDualStack
		svc.Spec.IPFamilyPolicy = &policy
	}
	if len(svc.Spec.ClusterIPs) != len(ranges) {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
	}
	return svc
}

// nth is an address of a range by its number; not valid if the range has not so many.
func nth(r netip.Prefix, n int) netip.Addr {
	a := r.Masked().Addr()
	for range n {
		a = a.Next()
	}
	if !a.IsValid() || !r.Contains(a) {
		return netip.Addr{}
	}
	return a
}
