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

var (
	errAllocated = errors.New("provided IP is already allocated")
	errFull      = errors.New("range is full")

	addressManager    = "ipallocator.k8s.io"
	addressesResource = schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}
	rangesResource    = schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
)

// clusterIPs reserves an address of each family that has none, and those that the client asks for.
func (r *reservation) clusterIPs(ctx context.Context) error {
	spec := &r.svc.Spec
	if !hasClusterIP(r.svc) || len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] == corev1.ClusterIPNone {
		return nil
	}
	for len(spec.ClusterIPs) < len(spec.IPFamilies) {
		spec.ClusterIPs = append(spec.ClusterIPs, "")
	}
	for i := range spec.IPFamilies {
		ip, err := r.address(ctx, spec.IPFamilies[i], spec.ClusterIPs[i])
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
func (r *reservation) changeIPs(ctx context.Context, old *corev1.Service) error {
	spec := &r.svc.Spec
	switch {
	case unchangedPreference(r.svc, old):
		return nil
	case !hasClusterIP(old) && hasClusterIP(r.svc):
		return r.clusterIPs(ctx)
	case len(old.Spec.ClusterIPs) > 0 && old.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
		return nil
	case hasClusterIP(old) && !hasClusterIP(r.svc):
		r.free.ips = append(r.free.ips, held(old).ips...)
	case len(old.Spec.IPFamilies) == 1 && len(spec.IPFamilies) == 2:
		asked := ""
		if len(spec.ClusterIPs) > 1 {
			asked = spec.ClusterIPs[1]
		}
		ip, err := r.address(ctx, spec.IPFamilies[1], asked)
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
func (r *reservation) address(ctx context.Context, family corev1.IPFamily, asked string) (string, error) {
	ranges, err := r.a.rangesOf(ctx, r.b, family)
	if err != nil {
		return "", err
	}
	path := field.NewPath("spec", "clusterIPs")
	if asked != "" {
		ip, err := netip.ParseAddr(asked)
		if err != nil {
			return "", apierrors.NewInternalError(fmt.Errorf("parse service IP %q: %w", asked, err))
		}
		if err := r.take(ctx, ip, ranges); err != nil {
			return "", r.invalid(field.Invalid(path, r.svc.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", asked, err)))
		}
		return asked, nil
	}
	for _, p := range ranges {
		if r.dry {
			return p.Masked().Addr().String(), nil
		}
		// Addresses that this server believes taken come last: another one may have given them back.
		for _, believed := range [2]bool{false, true} {
			for ip := range candidates(p) {
				if r.a.believes(ip) != believed || believed && r.inUse(ctx, ip) {
					continue
				}
				switch err := r.take(ctx, ip, ranges); {
				case err == nil:
					return ip.String(), nil
				case !errors.Is(err, errAllocated):
					return "", r.invalid(field.Invalid(path, r.svc.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP: %v", err)))
				}
			}
		}
	}
	// upstream's words
	return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", r.svc.Name, errFull))
}

// take reserves this address by creating its IPAddress, whose name is unique for all servers.
func (r *reservation) take(ctx context.Context, ip netip.Addr, ranges []netip.Prefix) error {
	within := slices.ContainsFunc(ranges, func(p netip.Prefix) bool {
		first, last := usable(p)
		return !ip.Less(first) && !last.Less(ip)
	})
	switch {
	case !within && r.dry: // upstream's dry runs ask one range, whichever the address is of
		return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", ip, ranges[0])
	case !within:
		return errors.New("the provided network does not match the current range")
	}
	if r.dry {
		return nil
	}
	r.a.mu.Lock()
	believed := r.a.ips[ip]
	r.a.ips[ip] = true
	r.a.mu.Unlock()
	switch stored, err := makeAddress(ctx, r.b, ip, r.svc); {
	case apierrors.IsAlreadyExists(err), err == nil && !stored && believed:
		return errAllocated
	case err != nil:
		if !believed {
			r.a.mu.Lock()
			delete(r.a.ips, ip)
			r.a.mu.Unlock()
		}
		return err
	}
	r.took.ips = append(r.took.ips, ip)
	return nil
}

// believes reports whether this server has given the address out, or seen it taken.
func (a *allocator) believes(ip netip.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ips[ip]
}

// inUse reports whether the address has its object. Without that kind, all that is believed is so.
func (r *reservation) inUse(ctx context.Context, ip netip.Addr) bool {
	_, err := r.b.Get(ctx, addressesResource, "", ip.String())
	var status apierrors.APIStatus
	return !apierrors.IsNotFound(err) || errors.As(err, &status) && status.Status().Details.Name == ""
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

// makeAddress stores the object that stands for an address in use, and reports whether it did: servers without that kind
// go without.
func makeAddress(ctx context.Context, b resource.Backend, ip netip.Addr, svc *corev1.Service) (bool, error) {
	_, err := b.Create(ctx, addressesResource, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOfAddr(ip)),
				networkingv1.LabelManagedBy:       addressManager,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: svc.Namespace, Name: svc.Name,
		}},
	}, false)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// dropAddress deletes the object of an address. One that stays behind is found when a service is next given the address.
func dropAddress(ctx context.Context, b resource.Backend, ip netip.Addr) {
	_ = b.Delete(ctx, addressesResource, "", ip.String(), &metav1.DeleteOptions{})
}
