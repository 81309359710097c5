// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// allocator gives services their cluster IPs and node ports, atomically among all servers of a store: each address is an
// IPAddress object, whose name one alone can have, and the ports are one record (see [portSet]), written only over the
// revision that was read. What is kept in memory saves asking for what is known to be taken.
//
// On first use it repairs inconsistencies: it records unrecorded addresses and ports of services, and releases recorded
// ones without a service after [leakAge], since another server may be about to store their service.
type allocator struct {
	ranges []netip.Prefix
	now    func() time.Time

	mu     sync.Mutex
	loaded bool
	ips    map[netip.Addr]bool
	leaked map[netip.Addr]time.Time // addresses without their service, and when that was seen

	ports portRecord
}

// leakAge is how long an allocation may be without its service.
const leakAge = time.Minute

func newAllocator(ranges []netip.Prefix) *allocator {
	return &allocator{ranges: ranges, now: time.Now, ips: map[netip.Addr]bool{}, leaked: map[netip.Addr]time.Time{}}
}

// reservation is what one write takes, and what it gives back once it is committed.
type reservation struct {
	a    *allocator
	b    resource.Backend
	svc  *corev1.Service
	dry  bool
	took given
	free given
	// ports are those in use, while ports are chosen.
	ports *portSet
}

// given are addresses and ports.
type given struct {
	ips   []netip.Addr
	ports []int32
}

// allocate reserves what obj needs and old did not have. It is the service's [resource.Strategy] Allocate.
func (a *allocator) allocate(ctx context.Context, b resource.Backend, obj, old resource.Object, dryRun bool) (func(bool), error) {
	svc, _ := obj.(*corev1.Service)
	before, _ := old.(*corev1.Service)
	if err := a.load(ctx, b); err != nil {
		return nil, err
	}
	if err := a.reclaim(ctx, b); err != nil {
		return nil, err
	}
	r := &reservation{a: a, b: b, svc: svc, dry: dryRun}
	ctx = context.WithoutCancel(ctx) // what is reserved is given back also if the client leaves
	var err error
	switch {
	case svc == nil && before == nil:
		return nil, nil
	case svc == nil:
		r.free = held(before)
	case before == nil:
		err = r.create(ctx)
	default:
		err = r.update(ctx, before)
	}
	if err != nil {
		r.done(ctx, false)
		return nil, err
	}
	return func(committed bool) { r.done(ctx, committed) }, nil
}

// done gives back what was reserved for nothing, or what the committed write no longer needs.
func (r *reservation) done(ctx context.Context, committed bool) {
	if r.dry {
		return
	}
	back := r.took
	if committed {
		back = r.free
	}
	for _, ip := range back.ips {
		dropAddress(ctx, r.b, ip)
		r.a.mu.Lock()
		delete(r.a.ips, ip)
		r.a.mu.Unlock()
	}
	if len(back.ports) > 0 {
		// What cannot be given back now is found leaked at the next start.
		_ = r.a.ports.change(ctx, r.b, func(set *portSet) error {
			set.remove(back.ports...)
			return nil
		})
	}
}

// held is all that a stored service has been given.
func held(svc *corev1.Service) given {
	g := given{ports: nodePorts(svc)}
	if svc.Spec.HealthCheckNodePort != 0 {
		g.ports = append(g.ports, svc.Spec.HealthCheckNodePort)
	}
	if !hasClusterIP(svc) {
		return g
	}
	for _, text := range allIPs(svc) {
		if ip, err := netip.ParseAddr(text); err == nil {
			g.ips = append(g.ips, ip)
		}
	}
	return g
}

// allIPs are a service's cluster IPs, also of one that was stored when there was but one.
func allIPs(svc *corev1.Service) []string {
	if len(svc.Spec.ClusterIPs) == 0 && svc.Spec.ClusterIP != "" {
		return []string{svc.Spec.ClusterIP}
	}
	return svc.Spec.ClusterIPs
}

// load reads what stored services hold, once, and notes what is not noted.
func (a *allocator) load(ctx context.Context, b resource.Backend) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.loaded {
		return nil
	}
	all, err := b.List(ctx, schema.GroupResource{Resource: "services"}, "")
	if err != nil {
		return fmt.Errorf("load allocated addresses: %w", err)
	}
	var ports portSet
	for _, obj := range all {
		svc, ok := obj.(*corev1.Service)
		if !ok {
			continue
		}
		g := held(svc)
		for _, ip := range g.ips {
			a.ips[ip] = true
			if _, err := makeAddress(ctx, b, ip, svc); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("repair address %s: %w", ip, err)
			}
		}
		ports.add(g.ports...)
	}
	if err := a.ports.load(ctx, b, ports, a.now()); err != nil {
		return fmt.Errorf("repair node ports: %w", err)
	}
	addresses, err := b.List(ctx, addressesResource, "")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("load allocated addresses: %w", err)
	}
	for _, obj := range addresses {
		ip, err := netip.ParseAddr(obj.GetName())
		if err == nil && !a.ips[ip] && obj.GetLabels()[networkingv1.LabelManagedBy] == addressManager {
			a.leaked[ip] = a.now()
		}
	}
	a.loaded = true
	return nil
}

// reclaim gives back what had no service when this server started, and has none still.
func (a *allocator) reclaim(ctx context.Context, b resource.Backend) error {
	a.mu.Lock()
	var due []netip.Addr
	for ip, since := range a.leaked {
		if a.now().Sub(since) >= leakAge {
			due = append(due, ip)
			delete(a.leaked, ip)
		}
	}
	a.mu.Unlock()
	portsDue := a.ports.leakedBefore(a.now().Add(-leakAge))
	if len(due) == 0 && len(portsDue) == 0 {
		return nil
	}
	all, err := b.List(ctx, schema.GroupResource{Resource: "services"}, "")
	if err != nil {
		return fmt.Errorf("reclaim leaked addresses: %w", err)
	}
	ips := map[netip.Addr]bool{}
	var ports portSet
	for _, obj := range all {
		if svc, ok := obj.(*corev1.Service); ok {
			g := held(svc)
			for _, ip := range g.ips {
				ips[ip] = true
			}
			ports.add(g.ports...)
		}
	}
	for _, ip := range due {
		if !ips[ip] {
			dropAddress(ctx, b, ip)
		}
	}
	portsDue = slices.DeleteFunc(portsDue, ports.has)
	if len(portsDue) == 0 {
		return nil
	}
	return a.ports.change(ctx, b, func(set *portSet) error {
		set.remove(portsDue...)
		return nil
	})
}

// create reserves for a new service.
func (r *reservation) create(ctx context.Context) error {
	spec := &r.svc.Spec
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if err := r.families(nil); err != nil {
		return err
	}
	if err := r.clusterIPs(ctx); err != nil {
		return err
	}
	if !typeWithPorts(r.svc) {
		return nil
	}
	return r.choosePorts(ctx, func() error {
		if err := r.newPorts(); err != nil {
			return err
		}
		if checksHealth(r.svc) {
			return r.healthPort()
		}
		return nil
	})
}

// update reserves for a service's change, and fills in what the client left out but the old service has.
func (r *reservation) update(ctx context.Context, old *corev1.Service) error {
	r.keep(old)
	r.pluralIPs(old)
	if err := r.families(old); err != nil {
		return err
	}
	if err := r.changeIPs(ctx, old); err != nil {
		return err
	}
	if typeWithPorts(old) && !typeWithPorts(r.svc) {
		r.free.ports = append(r.free.ports, nodePorts(old)...)
	}
	had, has := checksHealth(old), checksHealth(r.svc)
	if had && !has {
		r.free.ports = append(r.free.ports, old.Spec.HealthCheckNodePort)
	}
	if !typeWithPorts(r.svc) {
		return nil
	}
	return r.choosePorts(ctx, func() error {
		if err := r.changePorts(old); err != nil {
			return err
		}
		if !had && has {
			return r.healthPort()
		}
		return nil
	})
}

// keep fills in allocated values that the client left out.
func (r *reservation) keep(old *corev1.Service) {
	spec := &r.svc.Spec
	if hasClusterIP(old) && hasClusterIP(r.svc) {
		if spec.ClusterIP == "" {
			spec.ClusterIP = old.Spec.ClusterIP
		}
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = slices.Clone(allIPs(old))
		}
	}
	if givesPorts(old) && givesPorts(r.svc) {
		had, has := nodePorts(old), nodePorts(r.svc)
		byName := map[string]int32{}
		for _, p := range old.Spec.Ports {
			byName[p.Name] = p.NodePort
		}
		for i := range spec.Ports {
			p := &spec.Ports[i]
			if was := byName[p.Name]; p.NodePort == 0 && !(slices.Contains(had, was) && slices.Contains(has, was)) {
				p.NodePort = was
			}
		}
	}
	if checksHealth(old) && checksHealth(r.svc) && spec.HealthCheckNodePort == 0 {
		spec.HealthCheckNodePort = old.Spec.HealthCheckNodePort
	}
}

// pluralIPs brings clusterIPs in line with the clusterIP of clients that know only that.
func (r *reservation) pluralIPs(old *corev1.Service) {
	spec := &r.svc.Spec
	if len(old.Spec.ClusterIPs) > 0 && len(spec.ClusterIPs) == 0 && old.Spec.ClusterIP == spec.ClusterIP {
		spec.ClusterIPs = slices.Clone(old.Spec.ClusterIPs)
	}
	if old.Spec.ClusterIP == spec.ClusterIP || !sameIPs(old, r.svc) {
		return
	}
	if old.Spec.ClusterIP != "" && spec.ClusterIP == "" {
		spec.ClusterIPs = nil
		return
	}
	spec.ClusterIPs = []string{spec.ClusterIP}
}

// families fills in the IP families and their policy from each other, the cluster IPs and the cluster's ranges.
func (r *reservation) families(old *corev1.Service) error {
	svc, spec := r.svc, &r.svc.Spec
	if !hasClusterIP(svc) || old != nil && unchangedPreference(svc, old) {
		return nil
	}
	if spec.IPFamilyPolicy == nil {
		policy := corev1.IPFamilyPolicySingleStack
		switch {
		case old != nil && old.Spec.IPFamilyPolicy != nil:
			policy = *old.Spec.IPFamilyPolicy
		case spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0:
			policy = corev1.IPFamilyPolicyRequireDualStack
		}
		spec.IPFamilyPolicy = &policy
	}
	if errs := upstream.ServiceClusterIPs(svc, old); len(errs) > 0 {
		return r.invalid(errs...)
	}
	single := *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	path := field.NewPath("spec", "ipFamilyPolicy")
	var errs field.ErrorList
	if old != nil && single {
		if sameIPs(svc, old) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if slices.Equal(svc.Spec.IPFamilies, old.Spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
	} else if old != nil {
		if n := len(spec.ClusterIPs); n > 0 && n < len(old.Spec.ClusterIPs) {
			errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary cluster IP"))
		}
		if n := len(spec.IPFamilies); n > 0 && n < len(old.Spec.IPFamilies) {
			errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
		}
	}
	if single && len(spec.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy,
			"must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified"))
	}
	if single && len(spec.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy,
			"must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified"))
	}
	configured := r.a.families()
	for i, text := range spec.ClusterIPs {
		if text == corev1.ClusterIPNone {
			break
		}
		if i < len(spec.IPFamilies) {
			continue
		}
		family := familyOf(text)
		if !slices.Contains(configured, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
			continue
		}
		spec.IPFamilies = append(spec.IPFamilies, family)
	}
	if len(errs) > 0 {
		return r.invalid(errs...)
	}
	if spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0 {
		if len(spec.IPFamilies) == 0 {
			spec.IPFamilies = []corev1.IPFamily{configured[0]}
		}
		if len(spec.IPFamilies) < 2 && !single {
			spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
		}
		return nil
	}
	if *spec.IPFamilyPolicy == corev1.IPFamilyPolicyRequireDualStack && len(configured) < 2 {
		errs = append(errs, field.Invalid(path, spec.IPFamilyPolicy, "this cluster is not configured for dual-stack services"))
	}
	for i, family := range spec.IPFamilies {
		if !slices.Contains(configured, family) {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return r.invalid(errs...)
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []corev1.IPFamily{configured[0]}
	}
	if !single && len(spec.IPFamilies) == 1 && len(configured) == 2 {
		spec.IPFamilies = append(spec.IPFamilies, otherFamily(spec.IPFamilies[0]))
	}
	return nil
}

// unchangedPreference reports a service that prefers two families and asks for no change of them: it is neither given
// nor loses an address because the cluster changed.
func unchangedPreference(svc, old *corev1.Service) bool {
	prefers := func(s *corev1.Service) bool {
		return s.Spec.IPFamilyPolicy == nil || *s.Spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack
	}
	return svc.Spec.IPFamilyPolicy != nil && svc.Spec.Type == old.Spec.Type && prefers(svc) && prefers(old) &&
		sameIPs(svc, old) && slices.Equal(svc.Spec.IPFamilies, old.Spec.IPFamilies)
}

// invalid is the error of a service whose fields do not fit.
func (r *reservation) invalid(errs ...*field.Error) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, r.svc.Name, errs)
}

// families are those that the cluster has, the preferred first.
func (a *allocator) families() []corev1.IPFamily {
	var out []corev1.IPFamily
	for _, p := range a.ranges {
		if f := familyOfAddr(p.Addr()); !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

func familyOf(text string) corev1.IPFamily {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return corev1.IPFamilyUnknown
	}
	return familyOfAddr(ip)
}

func familyOfAddr(ip netip.Addr) corev1.IPFamily {
	if ip.Unmap().Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func otherFamily(f corev1.IPFamily) corev1.IPFamily {
	if f == corev1.IPv4Protocol {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// givesPorts reports services whose ports are given node ports unasked.
func givesPorts(svc *corev1.Service) bool {
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		a := svc.Spec.AllocateLoadBalancerNodePorts
		return a == nil || *a
	}
	return svc.Spec.Type == corev1.ServiceTypeNodePort
}
