// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package routes lets pods reach the pods of other nodes: each node has a route to each other node's pod range, by that
// node's own address (host-gateway routes). It requires nodes on one network: traffic does not pass a router, which the
// node logs. With VXLAN the routes lead through a tunnel instead, which works on any network in which nodes can send each
// other UDP.
//
// [Wanted] computes the routes: a pure function of the nodes. [Run] follows the nodes and updates the kernel's routes: it
// adds missing ones and removes those that belong to no node any more. It also listens to the kernel, which drops routes
// when a link or an address is removed. Its routes have a protocol number of their own ([Protocol]) and it changes no
// others. Routes stay when Run ends, as pods do.
package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// Protocol marks the routes that are ours, as /etc/iproute2/rt_protos numbers who made a route.
const Protocol netlink.RouteProtocol = 109

// retry is how long a route waits that could not be made, because its gateway cannot be reached yet.
const retry = 30 * time.Second

// settled is how long a change of the machine's links and addresses takes, which are many for a pod.
const settled = time.Second

// simulated is the label of nodes whose pods have no packets.
const simulated = "mortise.dev/simulated"

// Options say whose routes to make. NodeName and Informers are required.
type Options struct {
	NodeName  string
	Informers informers.SharedInformerFactory // prepared by Prepare, started by the caller
	VXLAN     bool                            // by a tunnel, for nodes that are behind routers
	Logger    *slog.Logger                    // nil: nothing is logged
}

// Prepare adds what routes need to informers that are not started yet.
func Prepare(f informers.SharedInformerFactory) { f.Core().V1().Nodes().Informer() }

// Wanted are the routes of a node: to each range of pod addresses of another, the address of that family by which it is
// reached. Nodes that are simulated have none, and neither have ranges that two nodes claim: the one whose name comes first has it.
func Wanted(self string, nodes []*corev1.Node) map[netip.Prefix]netip.Addr {
	return wanted(self, nodes, func(a netip.Addr, p netip.Prefix) bool { return a.Is4() == p.Addr().Is4() })
}

// wanted takes of each node the first address that fits.
func wanted(self string, nodes []*corev1.Node, fits func(netip.Addr, netip.Prefix) bool) map[netip.Prefix]netip.Addr {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		switch {
		case a.Name == self: // its own range is its own, even if another node claims it
			return -1
		case b.Name == self:
			return 1
		case a.Name < b.Name:
			return -1
		}
		return 1
	})
	own, taken, out := map[netip.Addr]bool{}, map[netip.Prefix]bool{}, map[netip.Prefix]netip.Addr{}
	for _, n := range nodes {
		if n.Labels[simulated] == "true" {
			continue
		}
		at := internal(n)
		if n.Name == self {
			for _, a := range at {
				own[a] = true
			}
		}
		for _, p := range ranges(n) {
			if taken[p] {
				continue
			}
			taken[p] = true
			i := slices.IndexFunc(at, func(a netip.Addr) bool { return fits(a, p) })
			if n.Name == self || i < 0 || own[at[i]] || at[i].IsLoopback() || at[i].IsUnspecified() {
				continue
			}
			out[p] = at[i]
		}
	}
	return out
}

// internal are the addresses at which a node is reached.
func internal(n *corev1.Node) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// ranges are those of a node's pods.
func ranges(n *corev1.Node) (out []netip.Prefix) {
	list := n.Spec.PodCIDRs
	if len(list) == 0 && n.Spec.PodCIDR != "" {
		list = []string{n.Spec.PodCIDR}
	}
	for _, text := range list {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 { // never the way to everywhere
			out = append(out, p.Masked())
		}
	}
	return out
}

// Run keeps the routes until ctx is done.
func Run(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	nodes := o.Informers.Core().V1().Nodes()
	changed := make(chan struct{}, 1)
	wake := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	r, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { wake() }, DeleteFunc: func(any) { wake() },
		UpdateFunc: func(old, now any) {
			if a, b := old.(*corev1.Node), now.(*corev1.Node); !slices.Equal(a.Spec.PodCIDRs, b.Spec.PodCIDRs) ||
				!slices.Equal(a.Status.Addresses, b.Status.Addresses) || a.Labels[simulated] != b.Labels[simulated] {
				wake()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	defer func() { _ = nodes.Informer().RemoveEventHandler(r) }() // of an informer that has stopped itself
	if !cache.WaitForCacheSync(ctx.Done(), r.HasSynced) {
		return nil
	}
	loop := func(ctx context.Context, events <-chan struct{}) error {
		return o.follow(ctx, nodes.Lister(), changed, events)
	}
	if err = device.Listen(ctx, loop); err == nil || ctx.Err() != nil {
		return nil
	}
	o.Logger.Error("Could not watch the routes of the kernel, so that removed routes are not restored at once", "error", err)
	return loop(ctx, nil)
}

// follow makes the routes at first, when the Nodes have changed, and when the kernel has told of events: it drops routes, without a word
// for each, when a link goes down or when the address goes that they are reached from.
func (o Options) follow(ctx context.Context, nodes corev1listers.NodeLister, changed, events <-chan struct{}) error {
	again, moment := time.NewTimer(0), time.NewTimer(0)
	defer again.Stop()
	defer moment.Stop()
	moment.Stop()
	waits := false              // for the moment to be over
	failed := map[string]bool{} // what was said already
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-events:
			if !waits {
				waits = true
				moment.Reset(settled)
			}
			continue
		case <-moment.C:
			waits = false
		case <-changed:
		case <-again.C:
		}
		all, err := nodes.List(labels.Everything())
		if err != nil {
			return fmt.Errorf("list nodes: %w", err)
		}
		errs := o.apply(all)
		said := map[string]bool{}
		for _, err := range errs {
			if said[err.Error()] = true; !failed[err.Error()] {
				o.Logger.Error("Could not write a route to the pods of another node, retrying", "error", err, "again", retry)
			}
		}
		failed = said
		if len(errs) > 0 {
			again.Reset(retry)
		}
	}
}

// apply makes the ways to those nodes' pods.
func (o Options) apply(nodes []*corev1.Node) []error {
	if o.VXLAN {
		t, ok := tunnelOf(o.NodeName, nodes)
		if !ok {
			return nil // the node is not there yet, or has no range
		}
		return t.apply()
	}
	if err := RemoveTunnel(); err != nil {
		return []error{err}
	}
	return Apply(Wanted(o.NodeName, nodes))
}

// Apply makes the routes of this machine those, as far as they are ours. What could not be is in the errors; the rest is done.
func Apply(want map[netip.Prefix]netip.Addr) (errs []error) { return apply(want, 0) }

// apply is Apply for gateways that are on one device, whatever its addresses are; 0: on any.
func apply(want map[netip.Prefix]netip.Addr, on int) (errs []error) {
	has, err := device.Whole(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: Protocol, Table: unix.RT_TABLE_MAIN},
			netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return []error{fmt.Errorf("list routes: %w", err)}
	}
	there := map[netip.Prefix]bool{}
	for i := range has {
		p, gateway := parse(&has[i])
		if via, ok := want[p]; ok && via == gateway && (on == 0 || has[i].LinkIndex == on) {
			there[p] = true
			continue
		} else if ok {
			continue // it is replaced below
		}
		if err := netlink.RouteDel(&has[i]); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("remove route to %s: %w", p, err))
		}
	}
	for p, via := range want {
		if there[p] {
			continue
		}
		route := &netlink.Route{
			Dst:      &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())},
			Gw:       via.AsSlice(),
			Protocol: Protocol, Table: unix.RT_TABLE_MAIN,
		}
		if on != 0 {
			route.LinkIndex, route.Flags = on, int(netlink.FLAG_ONLINK)
		}
		if err := netlink.RouteReplace(route); err != nil {
			errs = append(errs, fmt.Errorf("route to %s by %s: %w", p, via, err))
		}
	}
	return errs
}

func parse(r *netlink.Route) (to netip.Prefix, via netip.Addr) {
	via, _ = netip.AddrFromSlice(r.Gw)
	if r.Dst == nil {
		return to, via.Unmap()
	}
	a, _ := netip.AddrFromSlice(r.Dst.IP)
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), via.Unmap()
}
