// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
)

// source reads the newest state.
type source interface {
	service(types.NamespacedName) *corev1.Service // nil: there is none
	slices(types.NamespacedName) []*discoveryv1.EndpointSlice
	names() []types.NamespacedName
	ranges() []netip.Prefix // of Services' addresses
}

// syncer brings the kernel's tables to the state of a source. It is not safe for concurrent use.
type syncer struct {
	options Options
	source  source
	tables  []*table
	health  []*health // of each table
	well    atomic.Bool
	self    self

	// What can fail beside the rules, each a series of failures of its own.
	failed struct{ addresses, health, conntrack, sweep backoff.Failures }
}

// report logs a failure as part of a series, or ends the series if there is none.
func (s *syncer) report(series *backoff.Failures, level func(string, ...any), message string, err error) {
	if err == nil {
		series.Clear()
		return
	}
	series.Log(s.options.Clock.Now(), level, message, "error", err)
}

// self is the state of the node.
type self struct {
	zone      string
	addresses []netip.Addr
	here      []netip.Prefix
}

// open makes the tables. If the machine lacks one of the families, the other is enough.
func open(o Options, src source, s self) (*syncer, error) {
	out := &syncer{options: o, source: src, self: s}
	var errs []error
	var served []corev1.IPFamily
	for _, f := range families() {
		f.mark = o.mark()
		book, err := o.book(f)
		if err != nil {
			errs = append(errs, fmt.Errorf("use %s for %s: %w", o.Backend, f.ip, err))
			continue
		}
		out.tables = append(out.tables, newTable(f, book))
		served = append(served, f.ip)
		out.health = append(out.health, &health{network: f.network, hosts: hosts(out.around(f)), log: o.Logger, well: &out.well,
			servers: map[types.NamespacedName]*healthServer{}})
	}
	if len(out.tables) == 0 {
		return nil, errors.Join(errs...)
	}
	o.Health.serve(served, o.Clock.Now())
	if err := errors.Join(errs...); err != nil {
		o.Logger.Warn("Services work in one IP family only", "error", err)
	}
	return out, nil
}

// around returns the current inputs of a family's skeleton.
func (s *syncer) around(f family) surroundings {
	out := surroundings{
		view:         view{family: f, node: s.options.NodeName, zone: s.self.zone},
		allNodePorts: len(s.options.NodePortAddresses) == 0, bridged: s.options.Bridged, masqueradeAll: s.options.MasqueradeAll,
	}
	mine := func(list []netip.Prefix) []netip.Prefix {
		var kept []netip.Prefix
		for _, p := range list {
			if f.has(p.Addr()) {
				kept = append(kept, p)
			}
		}
		return kept
	}
	out.here, out.services = mine(s.self.here), mine(s.source.ranges())
	switch {
	case s.options.PodInterface != "":
		out.podsBy = device{name: s.options.PodInterface, begins: s.options.PodInterfaceBegins}
	case s.options.NodePods:
		out.pods = out.here
	default:
		out.pods = mine(s.options.PodCIDRs)
	}
	for _, a := range s.self.addresses {
		if f.has(a) {
			out.addresses = append(out.addresses, a)
		}
	}
	if !out.allNodePorts {
		out.nodePorts = s.nodePorts(f)
	}
	return out
}

// hosts returns the addresses of a family's health ports: all addresses, or those for node ports.
func hosts(around surroundings) []string {
	if around.allNodePorts {
		return []string{""}
	}
	var out []string
	for _, a := range around.nodePorts {
		out = append(out, a.String())
	}
	return out
}

// nodePorts returns the addresses for node ports.
func (s *syncer) nodePorts(f family) []netip.Addr {
	var out []netip.Addr
	add := func(a netip.Addr) {
		if a = a.Unmap(); f.has(a) && !a.IsLoopback() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	var found []net.Addr
	for _, text := range s.options.NodePortAddresses {
		if text == Primary {
			for _, a := range s.self.addresses {
				add(a)
			}
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			continue // Options were validated
		}
		if found == nil {
			found, err = net.InterfaceAddrs()
			s.report(&s.failed.addresses, s.options.Logger.Error, "Could not find the addresses of node ports", err)
			if err != nil {
				return out
			}
		}
		for _, a := range found {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && p.Contains(ip.Unmap()) {
					add(ip)
				}
			}
		}
	}
	return out
}

// sync updates the given Services, or all. After a failure, the next call writes everything.
func (s *syncer) sync(ctx context.Context, changed map[types.NamespacedName]bool, all bool) error {
	var errs, unhealthy, unforgotten []error
	for i, t := range s.tables {
		begin := s.options.Clock.Now()
		around := s.around(t.family)
		around.plain = t.book.plain()
		whole := all || !t.known
		names := make([]types.NamespacedName, 0, len(changed))
		if whole {
			names = s.source.names()
		} else {
			for name := range changed {
				names = append(names, name)
			}
		}
		want := make(map[types.NamespacedName]*plan, len(names))
		udp := false
		for _, name := range names {
			p := makePlan(s.source.service(name), s.source.slices(name), around.view)
			udp = udp || len(or(p).flows)+len(or(t.plans[name]).flows) > 0
			if p != nil || !whole {
				want[name] = p
			}
		}
		var err error
		if whole {
			err = t.replace(ctx, around, want)
		} else {
			err = t.change(ctx, want)
		}
		s.options.Metrics.wrote(t, whole, begin, s.options.Clock.Now(), err)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.options.Health.wrote(t.ip, s.options.Clock.Now())
		s.health[i].move(hosts(around))
		unhealthy = append(unhealthy, s.health[i].sync(ctx, t.answering()))
		if udp {
			unforgotten = append(unforgotten, s.forget(t))
		}
	}
	s.report(&s.failed.health, s.options.Logger.Error, "Could not serve health checks of services", errors.Join(unhealthy...))
	if len(unforgotten) > 0 {
		s.report(&s.failed.conntrack, s.options.Logger.Error, "Could not delete stale conntrack entries", errors.Join(unforgotten...))
	}
	err := errors.Join(errs...)
	s.well.Store(err == nil)
	return err
}

// answering returns the plans of Services with a health port.
func (t *table) answering() map[types.NamespacedName]*plan {
	out := map[types.NamespacedName]*plan{}
	for name, p := range t.plans {
		if p.healthPort != 0 {
			out[name] = p
		}
	}
	return out
}

func (s *syncer) forget(t *table) error {
	f := newFrontends()
	for _, p := range t.plans {
		f.add(p.flows)
	}
	n, err := s.options.forget(t.family, f)
	s.options.Metrics.forgot(t, n)
	return err
}

// sweep deletes objects that have been unused for a while.
func (s *syncer) sweep(ctx context.Context) error {
	var errs []error
	for _, t := range s.tables {
		if err := t.book.sweep(ctx); err != nil {
			s.options.Metrics.swept(t)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s *syncer) unswept() bool {
	return slices.ContainsFunc(s.tables, func(t *table) bool { return t.book.unswept() })
}

func (s *syncer) end() {
	for _, h := range s.health {
		h.end()
	}
}
