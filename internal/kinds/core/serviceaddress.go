// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/resource"
)

// Node ports are given from this range; those below the band only when asked for, or when the rest is used up.
const (
	firstPort = 30000
	lastPort  = 32767
	portBand  = 86
)

var (
	errAllocated     = errors.New("provided IP is already allocated")
	errFull          = errors.New("range is full")
	errPortAllocated = errors.New("provided port is already allocated")

	addressesResource = schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}
	rangesResource    = schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
)

// clusterIPs reserves an address of each family that has none, and those that the client asks for.
func (r *reservation) clusterIPs() error {
	spec := &r.svc.Spec
	if !hasClusterIP(r.svc) || len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return nil
	}
	for i := range spec.IPFamilies {
		if i >= len(spec.ClusterIPs) {
			spec.ClusterIPs = append(spec.ClusterIPs, "")
		}
		ip, err := r.address(spec.IPFamilies[i], spec.ClusterIPs[i])
		if err != nil {
			return err
		}
		spec.ClusterIPs[i] = ip
		if i == 0 {
			spec.ClusterIP = ip
		}
	}
	return nil
}

// changeIPs reserves and frees addresses for a change of type or families.
func (r *reservation) changeIPs(old *corev1.Service) error {
	spec := &r.svc.Spec
	switch {
	case unchangedPreference(r.svc, old):
		return nil
	case !hasClusterIP(old) && hasClusterIP(r.svc):
		return r.clusterIPs()
	case len(old.Spec.ClusterIPs) > 0 && old.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
		return nil
	case hasClusterIP(old) && !hasClusterIP(r.svc):
		r.free.ips = append(r.free.ips, held(old).ips...)
	case len(old.Spec.IPFamilies) == 1 && len(spec.IPFamilies) == 2:
		asked := ""
		if len(spec.ClusterIPs) > 1 {
			asked = spec.ClusterIPs[1]
		}
		ip, err := r.address(spec.IPFamilies[1], asked)
		if err != nil {
			return err
		}
		spec.ClusterIPs = append(spec.ClusterIPs[:1:1], ip)
	case len(old.Spec.IPFamilies) == 2 && len(spec.IPFamilies) == 1:
		if had := held(old).ips; len(had) == 2 {
			r.free.ips = append(r.free.ips, had[1])
		}
	}
	return nil
}

// address reserves one address of a family: the one asked for, or else any.
func (r *reservation) address(family corev1.IPFamily, asked string) (string, error) {
	ranges, err := r.a.rangesOf(r.ctx, r.b, family)
	if err != nil {
		return "", err
	}
	path := field.NewPath("spec", "clusterIPs")
	if asked != "" {
		ip, err := netip.ParseAddr(asked)
		if err != nil {
			return "", apierrors.NewInternalError(fmt.Errorf("parse service IP %q: %w", asked, err))
		}
		if err := r.take(ip, ranges); err != nil {
			return "", r.invalid(field.Invalid(path, r.svc.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", asked, err)))
		}
		return asked, nil
	}
	for _, p := range ranges {
		if r.dry {
			return p.Masked().Addr().String(), nil
		}
		for ip := range candidates(p) {
			switch err := r.take(ip, ranges); {
			case err == nil:
				return ip.String(), nil
			case !errors.Is(err, errAllocated):
				return "", r.invalid(field.Invalid(path, r.svc.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP: %v", err)))
			}
		}
	}
	return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", errFull)) // upstream's words
}

// take reserves this address.
func (r *reservation) take(ip netip.Addr, ranges []netip.Prefix) error {
	i := slices.IndexFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) })
	if i < 0 {
		return errors.New("the provided network does not match the current range")
	}
	if first, last := usable(ranges[i]); ip.Less(first) || last.Less(ip) {
		return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", ip, ranges[i])
	}
	if r.dry {
		return nil
	}
	r.a.mu.Lock()
	taken := r.a.ips[ip]
	r.a.ips[ip] = true
	r.a.mu.Unlock()
	if taken {
		return errAllocated
	}
	if err := makeAddress(r.ctx, r.b, ip, r.svc); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return errAllocated
		}
		r.a.mu.Lock()
		delete(r.a.ips, ip)
		r.a.mu.Unlock()
		return err
	}
	r.took.ips = append(r.took.ips, ip)
	return nil
}

// rangesOf are the ranges of a family: those the cluster began with, and the ServiceCIDRs that are ready.
func (a *allocator) rangesOf(ctx context.Context, b resource.Backend, family corev1.IPFamily) ([]netip.Prefix, error) {
	var out []netip.Prefix
	add := func(p netip.Prefix) {
		if familyOfAddr(p.Addr()) == family && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, p := range a.ranges {
		add(p)
	}
	all, err := b.List(ctx, rangesResource, "")
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list service ranges: %w", err)
	}
	for _, obj := range all {
		c, ok := obj.(*networkingv1.ServiceCIDR)
		if !ok || c.DeletionTimestamp != nil || !ready(c) {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				add(p)
			}
		}
	}
	if len(out) == 0 {
		return nil, apierrors.NewInternalError(fmt.Errorf("no service range of family %s", family))
	}
	return out, nil
}

func ready(c *networkingv1.ServiceCIDR) bool {
	for _, cond := range c.Status.Conditions {
		if cond.Type == networkingv1.ServiceCIDRConditionReady {
			return cond.Status == metav1.ConditionTrue
		}
	}
	return false
}

// usable are a range's first and last addresses for services: the network's own and the broadcast address are not.
func usable(p netip.Prefix) (first, last netip.Addr) {
	p = p.Masked()
	raw := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(raw)*8; bit++ {
		raw[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ = netip.AddrFromSlice(raw)
	first = p.Addr().Next()
	if p.Addr().Is4() && last.Compare(first) > 0 {
		last = last.Prev()
	}
	return first, last
}

// candidates are the addresses of a range to try in turn: those above the band that is kept for addresses asked for by
// name, from a random one on and around, then the band.
func candidates(p netip.Prefix) func(yield func(netip.Addr) bool) {
	return func(yield func(netip.Addr) bool) {
		first, last := usable(p)
		size := uint64(1) << min(p.Addr().BitLen()-p.Bits(), 62)
		band := uint64(0)
		if size > 16 {
			band = min(max(16, size/16), 256)
		}
		split := advance(first, band)
		for _, part := range [2][2]netip.Addr{{split, last}, {first, split.Prev()}} {
			if part[0].Compare(part[1]) > 0 {
				continue
			}
			span := distance(part[0], part[1], size)
			start := advance(part[0], rand.Uint64N(span))
			for ip := start; ; {
				if !yield(ip) {
					return
				}
				if ip == part[1] {
					ip = part[0]
				} else {
					ip = ip.Next()
				}
				if ip == start {
					break
				}
			}
		}
	}
}

// advance is the address n after ip, with n within the last 64 bits.
func advance(ip netip.Addr, n uint64) netip.Addr {
	raw := ip.AsSlice()
	for i := len(raw) - 1; i >= 0 && n > 0; i-- {
		n += uint64(raw[i])
		raw[i] = byte(n)
		n >>= 8
	}
	out, _ := netip.AddrFromSlice(raw)
	return out
}

// distance is how many addresses lie from first to last, both counted, at most limit.
func distance(first, last netip.Addr, limit uint64) uint64 {
	a, b := first.As16(), last.As16()
	var low, high uint64
	for i := 8; i < 16; i++ {
		low, high = low<<8|uint64(a[i]), high<<8|uint64(b[i])
	}
	return min(max(high-low+1, 1), limit)
}

// makeAddress stores the object that stands for an address in use. Servers without that kind go without.
func makeAddress(ctx context.Context, b resource.Backend, ip netip.Addr, svc *corev1.Service) error {
	_, err := b.Create(ctx, addressesResource, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOfAddr(ip)),
				networkingv1.LabelManagedBy:       "ipallocator.k8s.io",
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: svc.Namespace, Name: svc.Name,
		}},
	}, false)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// dropAddress deletes the object of an address. One that stays behind is found when a service is next given the address.
func dropAddress(ctx context.Context, b resource.Backend, ip netip.Addr) {
	_ = b.Delete(ctx, addressesResource, "", ip.String(), &metav1.DeleteOptions{})
}

// newPorts reserves node ports for a new service. Ports of one number, of several protocols, share one.
func (r *reservation) newPorts() error {
	ports := r.svc.Spec.Ports
	given := map[int32]int32{}
	for i := range ports {
		p := &ports[i]
		if p.NodePort == 0 && !givesPorts(r.svc) {
			continue
		}
		shared := given[p.Port]
		if shared != 0 && p.NodePort == 0 {
			p.NodePort = shared
		}
		if shared != 0 && p.NodePort == shared {
			continue
		}
		asked := p.NodePort
		for j := i; j < len(ports) && asked == 0 && shared == 0; j++ {
			if ports[j].Port == p.Port {
				asked = ports[j].NodePort
			}
		}
		if asked == 0 {
			port, err := r.anyPort()
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err)) // upstream's words
			}
			p.NodePort = port
		} else {
			if err := r.port(asked); err != nil {
				return r.invalid(field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), asked, err.Error()))
			}
			p.NodePort = asked
		}
		if shared == 0 {
			given[p.Port] = p.NodePort
		}
	}
	return nil
}

// changePorts reserves node ports that the old service does not have, and frees those that only it has.
func (r *reservation) changePorts(old *corev1.Service) error {
	had := nodePorts(old)
	if !typeWithPorts(old) {
		had = nil
	}
	var reserved []int32
	type key struct {
		protocol corev1.Protocol
		port     int32
	}
	seen := map[key]bool{}
	for i := range r.svc.Spec.Ports {
		p := &r.svc.Spec.Ports[i]
		switch {
		case p.NodePort == 0 && !givesPorts(r.svc):
			continue
		case p.NodePort == 0:
			port, err := r.anyPort()
			if err != nil {
				return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err)) // upstream's words
			}
			p.NodePort = port
		case !slices.Contains(had, p.NodePort) && !slices.Contains(reserved, p.NodePort):
			if err := r.port(p.NodePort); err != nil {
				return r.invalid(field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()))
			}
			reserved = append(reserved, p.NodePort)
		}
		k := key{p.Protocol, p.NodePort}
		if seen[k] {
			return fmt.Errorf("duplicate nodePort: {%v %v}", p.Protocol, p.NodePort)
		}
		seen[k] = true
	}
	has := nodePorts(r.svc)
	for _, port := range had {
		if !slices.Contains(has, port) {
			r.free.ports = append(r.free.ports, port)
		}
	}
	return nil
}

// healthPort reserves the health-check port, the one asked for or any.
func (r *reservation) healthPort() error {
	if asked := r.svc.Spec.HealthCheckNodePort; asked != 0 {
		if err := r.port(asked); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", asked, err)) // upstream's words
		}
		return nil
	}
	port, err := r.anyPort()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", port, err)) // upstream's words
	}
	r.svc.Spec.HealthCheckNodePort = port
	return nil
}

// port reserves this port.
func (r *reservation) port(port int32) error {
	if port < firstPort || port > lastPort {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %d-%d", firstPort, lastPort)
	}
	r.a.mu.Lock()
	defer r.a.mu.Unlock()
	if r.a.ports[port] || slices.Contains(r.took.ports, port) {
		return errPortAllocated
	}
	if !r.dry {
		r.a.ports[port] = true
	}
	r.took.ports = append(r.took.ports, port)
	return nil
}

// anyPort reserves a port above the band, or in it when there is no other.
func (r *reservation) anyPort() (int32, error) {
	for _, part := range [2][2]int32{{firstPort + portBand, lastPort}, {firstPort, firstPort + portBand - 1}} {
		size := part[1] - part[0] + 1
		start := rand.Int32N(size)
		for i := range size {
			port := part[0] + (start+i)%size
			if r.port(port) == nil {
				return port, nil
			}
		}
	}
	return 0, errFull
}
