// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/device"
	"github.com/mortise-dev/mortise/internal/agent/netlab"
)

func service(nodes string, kind corev1.ServiceType, ips ...string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"mortise.dev/load-balancer-nodes": nodes}}}
	svc.Spec.Type = kind
	for _, ip := range ips {
		svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	return svc
}

// TestWanted: a node announces the addresses that are its own and that the Service has.
func TestWanted(t *testing.T) {
	lb := corev1.ServiceTypeLoadBalancer
	for _, c := range []struct {
		services []*corev1.Service
		want     string
	}{
		{nil, "[]"},
		{[]*corev1.Service{service("192.0.2.1=a,fd00::1=b", lb, "192.0.2.1", "fd00::1")}, "[192.0.2.1]"},
		{[]*corev1.Service{service("192.0.2.1=a", lb, "192.0.2.1"), service("192.0.2.1=a,192.0.2.0=a", lb, "192.0.2.1", "192.0.2.0")},
			"[192.0.2.0 192.0.2.1]"},
		{[]*corev1.Service{service("192.0.2.1=a", corev1.ServiceTypeClusterIP, "192.0.2.1")}, "[]"},
		{[]*corev1.Service{service("192.0.2.1=a", lb)}, "[]"},
		{[]*corev1.Service{service("127.0.0.1=a,x=a,=a,::%x=a", lb, "127.0.0.1", "x", "")}, "[]"},
	} {
		if got := fmt.Sprint(Wanted("a", c.services)); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// TestRelieved: a ready node other than this one, with a network, could take over.
func TestRelieved(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus, simulated string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"mortise.dev/simulated": simulated}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		return n
	}
	if !relieved("a", []*corev1.Node{node("a", "True", ""), node("b", "True", "")}) {
		t.Error("b is ready")
	}
	if relieved("a", []*corev1.Node{node("a", "True", ""), node("b", "Unknown", ""), node("c", "True", "true")}) {
		t.Error("nobody else is ready")
	}
}

// TestNeighbours: two machines on one network. A neighbour reaches an address at the one that announced it last, in both families, and no
// address stays behind.
func TestNeighbours(t *testing.T) {
	lab := netlab.New(t)
	for _, a := range []string{"10.244.0.50", "fd00:244::50"} {
		at := netip.MustParseAddr(a)
		for _, host := range []*netlab.Host{lab.Pod1, lab.Pod2} {
			host.Do(func() error { return errors.Join(assign([]netip.Addr{at}, 0), tell(at)) })
			host.Serve("tcp", netip.AddrPortFrom(at, 80).String())
			if server, _, err := lab.Node.Call(t.Context(), "tcp", netip.AddrPortFrom(at, 80).String()); err != nil || server != host.Name {
				t.Errorf("%s: %s answers, %v, want %s", a, server, err, host.Name)
			}
		}
		for _, host := range []*netlab.Host{lab.Pod1, lab.Pod2} {
			host.Do(func() error { return Remove() })
			host.Do(func() error {
				all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
				for i := range all {
					if all[i].IP.Equal(at.AsSlice()) {
						t.Errorf("%s still has %s", host.Name, at)
					}
				}
				return err
			})
		}
	}
}

// TestLifetime: the kernel drops the addresses of a node that others relieve, unless the node repeats them.
func TestLifetime(t *testing.T) {
	lab := netlab.New(t)
	want := []netip.Addr{netip.MustParseAddr("10.244.0.50"), netip.MustParseAddr("fd00:244::50")}
	lab.Pod1.Do(func() error {
		for _, lifetime := range []time.Duration{0, time.Second} {
			if err := assign(want, lifetime); err != nil {
				return err
			}
			if has, err := assigned(); err != nil || fmt.Sprint(has) != fmt.Sprint(want) {
				t.Errorf("lifetime %v: the machine has %v, %v, want %v", lifetime, has, err, want)
			}
		}
		return device.Listen(t.Context(), func(_ context.Context, events <-chan struct{}) error {
			for {
				has, err := assigned()
				if err != nil || len(has) == 0 {
					return err
				}
				<-events
			}
		})
	})
}
