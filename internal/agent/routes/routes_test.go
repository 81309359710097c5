// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/mortise-dev/mortise/internal/agent/device"
	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

func made(name string, addresses []string, ranges ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: ranges}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: name})
	return n
}

func labelled(n *corev1.Node) *corev1.Node {
	n.Labels = map[string]string{simulated: "true"}
	return n
}

// TestWanted: which routes a node has, and which it must not have.
func TestWanted(t *testing.T) {
	self := made("b", []string{"192.168.0.2", "fd00::2"}, "10.244.2.0/24", "fd00:244:2::/64")
	for name, c := range map[string]struct {
		nodes []*corev1.Node
		want  map[string]string
	}{
		"alone": {nil, map[string]string{}},
		"both ranges": {[]*corev1.Node{made("a", []string{"192.168.0.1", "fd00::1"}, "10.244.1.0/24", "fd00:244:1::/64")},
			map[string]string{"10.244.1.0/24": "192.168.0.1", "fd00:244:1::/64": "fd00::1"}},
		"no address of the family": {[]*corev1.Node{made("a", []string{"192.168.0.1"}, "fd00:244:1::/64")}, map[string]string{}},
		"no range yet":             {[]*corev1.Node{made("a", []string{"192.168.0.1"})}, map[string]string{}},
		"simulated":                {[]*corev1.Node{labelled(made("a", []string{"192.168.0.1"}, "10.244.1.0/24"))}, map[string]string{}},
		"the node's own range":     {[]*corev1.Node{made("a", []string{"192.168.0.1"}, "10.244.2.0/24")}, map[string]string{}},
		"the node's own address":   {[]*corev1.Node{made("a", []string{"192.168.0.2"}, "10.244.1.0/24")}, map[string]string{}},
		"loopback":                 {[]*corev1.Node{made("a", []string{"127.0.0.1"}, "10.244.1.0/24")}, map[string]string{}},
		"everywhere":               {[]*corev1.Node{made("a", []string{"192.168.0.1"}, "0.0.0.0/0")}, map[string]string{}},
		"no range at all":          {[]*corev1.Node{made("a", []string{"192.168.0.1"}, "nonsense")}, map[string]string{}},
		"two claim one range": {[]*corev1.Node{made("c", []string{"192.168.0.3"}, "10.244.1.0/24"),
			made("a", []string{"192.168.0.1"}, "10.244.1.0/24")}, map[string]string{"10.244.1.0/24": "192.168.0.1"}},
		"a range that is not masked": {[]*corev1.Node{made("a", []string{"192.168.0.1"}, "10.244.1.7/24")},
			map[string]string{"10.244.1.0/24": "192.168.0.1"}},
	} {
		for _, nodes := range [][]*corev1.Node{append([]*corev1.Node{self}, c.nodes...), append(c.nodes, self)} {
			got := map[string]string{}
			for p, via := range Wanted("b", nodes) {
				got[p.String()] = via.String()
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

// TestApply: in network namespaces, pods of one node reach the pod of another by the routes and by nothing else; a gateway that
// cannot be reached is an error that spoils nothing; routes of others stay.
func TestApply(t *testing.T) {
	lab := netlab.New(t)
	four, six := netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:0:1::/64")
	want := map[netip.Prefix]netip.Addr{four: netip.MustParseAddr("192.168.60.2"), six: netip.MustParseAddr("fd00:60::2")}
	lab.Node.Do(func() error { // the lab's own
		return errors.Join(remove(four), remove(six))
	})
	lab.Other.Serve("tcp", "10.244.1.2:80")
	lab.Other.Serve("tcp", "[fd00:244:0:1::2]:80")
	reach := func(want bool) {
		t.Helper()
		for _, at := range []string{"10.244.1.2:80", "[fd00:244:0:1::2]:80"} {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if !want {
				cancel()
				ctx, cancel = context.WithTimeout(t.Context(), 500*time.Millisecond)
			}
			server, _, err := lab.Pod1.Call(ctx, "tcp", at)
			cancel()
			if (err == nil && server == "other") != want {
				t.Errorf("%s from a pod: %q, %v; want it reached: %v", at, server, err, want)
			}
		}
	}
	reach(false)
	apply := func(want map[netip.Prefix]netip.Addr, wrong int) {
		t.Helper()
		lab.Node.Do(func() error {
			if errs := Apply(want); len(errs) != wrong {
				return fmt.Errorf("%d errors, want %d: %w", len(errs), wrong, errors.Join(errs...))
			}
			return nil
		})
	}
	apply(want, 0)
	apply(want, 0)
	reach(true)
	away := map[netip.Prefix]netip.Addr{four: want[four], six: want[six],
		netip.MustParsePrefix("10.244.7.0/24"): netip.MustParseAddr("172.31.7.7")}
	lab.Node.Do(func() error { return remove(netip.MustParsePrefix("0.0.0.0/0")) })
	apply(away, 1)
	reach(true)
	// The node got another address: its route goes there. Then it is gone.
	apply(map[netip.Prefix]netip.Addr{four: netip.MustParseAddr("192.168.50.2"), six: netip.MustParseAddr("fd00:50::2")}, 0)
	reach(false)
	apply(want, 0)
	reach(true)
	apply(nil, 0)
	reach(false)
	lab.Node.Do(func() error {
		all, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		if len(all) < 3 {
			return fmt.Errorf("only %d routes are left: those of others are gone", len(all))
		}
		return nil
	})
}

// TestRun: a route that the kernel has dropped is made again, though no Node has changed.
func TestRun(t *testing.T) {
	lab := netlab.New(t)
	four := netip.MustParsePrefix("10.244.1.0/24")
	lab.Node.Do(func() error { return remove(four) }) // the lab's own
	all := informers.NewSharedInformerFactory(fake.NewClientset(made("node", []string{"192.168.60.1"}, "10.244.0.0/24"),
		made("other", []string{"192.168.60.2"}, four.String())), 0)
	Prepare(all)
	ctx, cancel := context.WithCancel(t.Context())
	all.Start(ctx.Done())
	ended := make(chan error, 1)
	go func() {
		ended <- lab.Node.Try(func() error { return Run(ctx, Options{NodeName: "node", Informers: all}) })
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		all.Shutdown()
	}()
	there := func(what string) {
		t.Helper()
		tick, limit := time.NewTicker(50*time.Millisecond), time.After(20*time.Second) // less than the time after which it looks anyhow
		defer tick.Stop()
		for {
			var has []netlink.Route
			lab.Node.Do(func() (err error) {
				has, err = netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: Protocol}, netlink.RT_FILTER_PROTOCOL)
				return err
			})
			if len(has) == 1 {
				return
			}
			select {
			case <-tick.C:
			case <-limit:
				t.Fatalf("%s: there are the routes %v", what, has)
			}
		}
	}
	there("at first")
	lab.Node.Do(func() error { return remove(four) })
	there("removed by somebody")
	lab.Node.Do(func() error {
		link, err := netlink.LinkByName("other")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(link), netlink.LinkSetUp(link))
	})
	there("the link has flapped")
}

// TestRest: with all routes made, nothing is done that the kernel would tell of, which would be heard, and done again.
func TestRest(t *testing.T) {
	for _, vxlan := range []bool{false, true} {
		lab := netlab.New(t)
		all := informers.NewSharedInformerFactory(fake.NewClientset(made("node", []string{"192.168.60.1"}, "10.244.0.0/24"),
			made("other", []string{"192.168.60.2"}, "10.244.1.0/24")), 0)
		Prepare(all)
		ctx, cancel := context.WithCancel(t.Context())
		all.Start(ctx.Done())
		ended := make(chan error, 1)
		go func() {
			ended <- lab.Node.Try(func() error { return Run(ctx, Options{NodeName: "node", Informers: all, VXLAN: vxlan}) })
		}()
		lab.Node.Do(func() error {
			return device.Listen(ctx, func(ctx context.Context, events <-chan struct{}) error {
				quiet, limit := time.NewTimer(3*settled), time.After(30*time.Second)
				defer quiet.Stop()
				for {
					select {
					case <-events:
						quiet.Reset(3 * settled)
					case <-quiet.C:
						return nil
					case <-limit:
						return fmt.Errorf("VXLAN: %v: it does not come to rest", vxlan)
					}
				}
			})
		})
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		all.Shutdown()
	}
}

func remove(p netip.Prefix) error {
	err := netlink.RouteDel(&netlink.Route{Dst: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}})
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}
