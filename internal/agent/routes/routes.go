// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package routes lets pods reach the pods of other nodes: each node has a route to each other node's pod range, via that
// node's own address (host-gateway routes). It requires nodes on one network: if a router lies between them, traffic does not pass, and the
// node logs that. With VXLAN the routes lead through a tunnel instead, which works on any network in which nodes can send each
// other UDP.
//
// [Wanted] computes the routes: a pure function of the nodes. [Run] watches the nodes and updates the kernel's routes: it
// adds missing ones and removes those that belong to no node any more. It also listens to the kernel, which drops routes
// when a link or an address is removed. Its routes have their own protocol number ([Protocol]) and it changes no
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

// Protocol identifies our routes, like the numbers in /etc/iproute2/rt_protos.
const Protocol netlink.RouteProtocol = 109

// retry is the delay after a route could not be added because its gateway is not reachable yet.
const retry = 30 * time.Second

// settled is how long a change of the machine's links and addresses takes: a new pod causes many.
const settled = time.Second

// simulated is the label of nodes whose pods have no network.
const simulated = "mortise.dev/simulated"

// Options configure the routes. NodeName and Informers are required.
type Options struct {
	NodeName  string
	Informers informers.SharedInformerFactory // prepared by Prepare, started by the caller
	VXLAN     bool                            // through a tunnel, for nodes behind routers
	Logger    *slog.Logger                    // nil discards logs
}

// Prepare adds the required informers to a factory that has not started.
func Prepare(f informers.SharedInformerFactory) { f.Core().V1().Nodes().Informer() }

// Wanted returns the routes of a node: to each pod range of another node, via that node's address of the same family. There are no routes
// to simulated nodes. If two nodes claim a range, the node whose name sorts first gets it.
func Wanted(self string, nodes []*corev1.Node) map[netip.Prefix]netip.Addr {
	return wanted(self, nodes, func(a netip.Addr, p netip.Prefix) bool { return a.Is4() == p.Addr().Is4() })
}

// wanted selects the first usable address of each node.
func wanted(self string, nodes []*corev1.Node, fits func(netip.Addr, netip.Prefix) bool) map[netip.Prefix]netip.Addr {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int {
		switch {
		case a.Name == self: // its own range stays its own, even if another node claims it
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

// internal returns the internal IPs of a node.
func internal(n *corev1.Node) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out = append(out, ip.Unmap())
		}
	}
	return out
}

// ranges returns the pod ranges of a node.
func ranges(n *corev1.Node) (out []netip.Prefix) {
	list := n.Spec.PodCIDRs
	if len(list) == 0 && n.Spec.PodCIDR != "" {
		list = []string{n.Spec.PodCIDR}
	}
	for _, text := range list {
		if p, err := netip.ParsePrefix(text); err == nil && p.Bits() > 0 { // never a default route
			out = append(out, p.Masked())
		}
	}
	return out
}

// Run maintains the routes until ctx is done.
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

// follow updates the routes at the start, after changes of Nodes, and after events of the kernel: it drops routes, without an event for
// each, when a link goes down or the source address is removed.
func (o Options) follow(ctx context.Context, nodes corev1listers.NodeLister, changed, events <-chan struct{}) error {
	again, moment := time.NewTimer(0), time.NewTimer(0)
	defer again.Stop()
	defer moment.Stop()
	moment.Stop()
	waits := false              // a pause after an event is running
	failed := map[string]bool{} // the logged failures
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

// apply sets the routes to the pods of these nodes.
func (o Options) apply(nodes []*corev1.Node) []error {
	if o.VXLAN {
		t, ok := tunnelOf(o.NodeName, nodes)
		if !ok {
			return nil // the node does not exist yet, or has no range
		}
		return t.apply()
	}
	if err := RemoveTunnel(); err != nil {
		return []error{err}
	}
	return Apply(Wanted(o.NodeName, nodes))
}

// Apply sets the routes of this machine, among those with our protocol number. It returns the errors of single routes, and sets all others.
func Apply(want map[netip.Prefix]netip.Addr) (errs []error) { return apply(want, 0) }

// apply is like Apply for gateways on one device, whatever the device's addresses are; 0: on any.
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
			continue // the code below replaces it
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
