// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package dnsservice is the Service kube-dns: it creates the Service where there is none ([Ensure]), and follows it on a node
// ([FollowService]). Package dns answers at its addresses.
package dnsservice

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// The name of the cluster DNS's Service.
const (
	serviceName = "kube-dns"
	proxyLabel  = "service.kubernetes.io/service-proxy-name"
	proxyName   = "mortise-dns"
	number      = 10 // of its address in the range
)

// Found is the Service kube-dns on this node. The zero value means that there is none.
type Found struct {
	// Addresses are the DNS servers for pods.
	Addresses []netip.Addr
	// Ours means that the nodes of Mortise serve the DNS there. They do not change a Service of others.
	Ours bool
}

// Equal reports whether two are the same.
func (f Found) Equal(other Found) bool {
	return f.Ours == other.Ours && slices.Equal(f.Addresses, other.Addresses)
}

// Ensure creates the Service kube-dns with the tenth address of each range, if there is none.
func Ensure(ctx context.Context, client kubernetes.Interface, ranges []netip.Prefix) (found Found, made bool, err error) {
	services := client.CoreV1().Services(metav1.NamespaceSystem)
	svc, err := services.Get(ctx, serviceName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		made = true
		svc, err = services.Create(ctx, wanted(ranges), metav1.CreateOptions{})
		if apierrors.IsInvalid(err) { // the address is in use: any other will do
			without := wanted(ranges)
			without.Spec.ClusterIP, without.Spec.ClusterIPs = "", nil
			svc, err = services.Create(ctx, without, metav1.CreateOptions{})
		}
		if apierrors.IsAlreadyExists(err) {
			made = false
			svc, err = services.Get(ctx, serviceName, metav1.GetOptions{})
		}
	}
	if err != nil {
		return Found{}, false, fmt.Errorf("make service %s: %w", serviceName, err)
	}
	if found = foundIn(svc); len(found.Addresses) == 0 {
		return Found{}, made, fmt.Errorf("service %s has no address", serviceName)
	}
	return found, made, nil
}

func foundIn(svc *corev1.Service) Found {
	f := Found{Ours: svc.Labels[proxyLabel] == proxyName}
	for _, text := range ClusterIPs(svc) {
		if a, err := netip.ParseAddr(text); err == nil {
			f.Addresses = append(f.Addresses, a)
		}
	}
	if len(f.Addresses) == 0 {
		return Found{}
	}
	return f
}

// Service watches the Service kube-dns.
type Service struct {
	found   atomic.Pointer[Found]
	changed chan struct{}
}

// FollowService watches the Service kube-dns with informers that have not started. Until they have synced, it uses the Service that client
// reads now. If the server does not respond, it logs that, and uses none.
func FollowService(
	ctx context.Context, client kubernetes.Interface, f informers.SharedInformerFactory, log *slog.Logger,
) (*Service, error) {
	s := &Service{changed: make(chan struct{}, 1)}
	s.found.Store(&Found{})
	switch svc, err := client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, serviceName, metav1.GetOptions{}); {
	case err == nil:
		s.set(foundIn(svc))
	case !apierrors.IsNotFound(err):
		log.Error("Could not read the Service of the cluster DNS", "error", err)
	}
	return s, s.follow(f)
}

func (s *Service) follow(f informers.SharedInformerFactory) error {
	_, err := f.Core().V1().Services().Informer().AddEventHandler(cache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj)
			return err == nil && key == metav1.NamespaceSystem+"/"+serviceName
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    s.apply,
			UpdateFunc: func(_, obj any) { s.apply(obj) },
			DeleteFunc: func(any) { s.set(Found{}) },
		},
	})
	if err != nil {
		return fmt.Errorf("follow service %s: %w", serviceName, err)
	}
	return nil
}

func (s *Service) apply(obj any) {
	if svc, ok := obj.(*corev1.Service); ok {
		s.set(foundIn(svc))
	}
}

func (s *Service) set(now Found) {
	if before := s.found.Swap(&now); before.Equal(now) {
		return
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Found returns the current Service.
func (s *Service) Found() Found { return *s.found.Load() }

// Addresses returns the current DNS servers for pods; none if there is no Service.
func (s *Service) Addresses() []string {
	var out []string
	for _, a := range s.Found().Addresses {
		out = append(out, a.String())
	}
	return out
}

// Run calls answer with the Service's addresses while the Service is ours, until ctx ends. The context of answer ends when the Service
// changes. Without a Service, it calls missing.
func (s *Service) Run(ctx context.Context, answer func(ctx context.Context, addresses []netip.Addr) error, missing func()) error {
	for ctx.Err() == nil {
		if err := s.once(ctx, answer, missing); err != nil {
			return err
		}
	}
	return nil
}

// once does so until the Service changes.
func (s *Service) once(ctx context.Context, answer func(ctx context.Context, addresses []netip.Addr) error, missing func()) error {
	now := s.Found()
	if len(now.Addresses) == 0 {
		missing()
	}
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		if !now.Ours {
			<-within.Done()
			answered <- nil
			return
		}
		answered <- answer(within, now.Addresses)
	}()
	for {
		select {
		case err := <-answered:
			return err
		case <-ctx.Done():
			cancel()
			return <-answered
		case <-s.changed:
			if s.Found().Equal(now) {
				continue
			}
			cancel()
			return <-answered
		}
	}
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
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP,
			Ports: []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)}},
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

// nth returns the address of a range with this number; invalid if the range is too small.
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

// ClusterIPs returns the addresses of a Service, which may be the text None.
func ClusterIPs(svc *corev1.Service) []string {
	if len(svc.Spec.ClusterIPs) > 0 {
		return svc.Spec.ClusterIPs
	}
	return []string{svc.Spec.ClusterIP}
}
