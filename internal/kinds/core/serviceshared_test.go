// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// keepingShelf is a shelf that keeps records, too: a store that several servers share.
type keepingShelf struct {
	*shelf
	records sync.Mutex
	value   []byte
	version int64
}

func newKeepingShelf() *keepingShelf {
	return &keepingShelf{shelf: shelfOf(map[string]resource.Object{})}
}

func (k *keepingShelf) Record(context.Context, string) ([]byte, int64, error) {
	k.records.Lock()
	defer k.records.Unlock()
	return bytes.Clone(k.value), k.version, nil
}

func (k *keepingShelf) SetRecord(_ context.Context, key string, value []byte, revision int64) (bool, error) {
	k.records.Lock()
	defer k.records.Unlock()
	if key != "ranges/servicenodeports" {
		return false, fmt.Errorf("unknown key %q", key)
	}
	if revision != k.version {
		return false, nil
	}
	k.value, k.version = value, k.version+1
	return true, nil
}

// ports are those in the record, as any server sees them.
func (k *keepingShelf) ports(t *testing.T) []int32 {
	t.Helper()
	set, stored, _, err := readPorts(context.Background(), k)
	if err != nil {
		t.Fatal(err)
	}
	if stored.Range != "30000-32767" {
		t.Errorf("the record is of the range %q", stored.Range)
	}
	return set.without(&portSet{})
}

func (k *keepingShelf) store(svc *corev1.Service) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.objects[at(schema.GroupResource{Resource: "services"}, svc.Namespace, svc.Name)] = svc
}

// TestAllocationAcrossServers has 64 creators on each of two servers of one store ask at once, for any address and port
// and, half of them, for the same few by name. No two get the same, and all are given back.
func TestAllocationAcrossServers(t *testing.T) {
	b := newKeepingShelf()
	ranges := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/23")}
	servers := []*allocator{newAllocator(ranges), newAllocator(ranges)}
	var (
		mu     sync.Mutex
		owners = map[string]string{}
		given  []*corev1.Service
		all    sync.WaitGroup
	)
	for i := range 128 {
		all.Go(func() {
			svc := service(fmt.Sprint("s", i), func(s *corev1.ServiceSpec) {
				s.Type = corev1.ServiceTypeLoadBalancer
				s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				if i%4 < 2 {
					s.Ports[0].NodePort = 30000 + int32(i%8)
				}
			})
			done, err := servers[i%2].allocate(context.Background(), b, svc, nil, false)
			if err != nil {
				return // the port is taken
			}
			mu.Lock()
			defer mu.Unlock()
			for _, what := range []string{svc.Spec.ClusterIP, fmt.Sprint(svc.Spec.Ports[0].NodePort), fmt.Sprint(svc.Spec.HealthCheckNodePort)} {
				if other, ok := owners[what]; ok {
					t.Errorf("%s and %s both have %s", other, svc.Name, what)
				}
				owners[what] = svc.Name
			}
			given = append(given, svc)
			b.store(svc)
			done(true)
		})
	}
	all.Wait()
	if want := 64 + 4; len(given) != want { // 30000, 30001, 30004 and 30005 have one owner each
		t.Errorf("%d services were given what they need, want %d", len(given), want)
	}
	if got := len(b.ports(t)); got != 2*len(given) {
		t.Errorf("%d ports in use, want %d", got, 2*len(given))
	}
	for i, svc := range given {
		done, err := servers[(i+1)%2].allocate(context.Background(), b, nil, svc, false)
		if err != nil {
			t.Fatal(err)
		}
		done(true)
	}
	if left := b.ports(t); len(left) > 0 {
		t.Errorf("still in use: %v", left)
	}
	if left, _ := b.List(context.Background(), addressesResource, ""); len(left) > 0 {
		t.Errorf("%d addresses are still in use", len(left))
	}
	// what the other server gave back can be had by name
	again := service("again", func(s *corev1.ServiceSpec) { s.ClusterIP = given[0].Spec.ClusterIP })
	for _, a := range servers {
		done, err := a.allocate(context.Background(), b, again.DeepCopy(), nil, false)
		if err != nil {
			t.Fatal(err)
		}
		done(false)
	}
}

// TestAllocationRepair starts on a store in which some allocations have no service, and some services no allocation.
func TestAllocationRepair(t *testing.T) {
	ctx := context.Background()
	b := newKeepingShelf()
	var set portSet
	set.add(30001, 30002)
	value, err := portsCodec.Encode(&corev1.RangeAllocation{Range: portRange, Data: set.bits.Bytes()})
	if err != nil {
		t.Fatal(err)
	}
	b.value, b.version = value, 1
	for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
		b.objects[at(addressesResource, "", ip)] = &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{
			Name: ip, Labels: map[string]string{networkingv1.LabelManagedBy: addressManager}}}
	}
	has := func(name, ip string, port int32) *corev1.Service {
		return service(name, func(s *corev1.ServiceSpec) {
			s.Type, s.ClusterIP, s.ClusterIPs, s.Ports[0].NodePort = corev1.ServiceTypeNodePort, ip, []string{ip}, port
		})
	}
	b.store(has("unnoted", "10.0.0.3", 30003))
	a := newAllocator([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")})
	now := time.Unix(1000, 0)
	a.now = func() time.Time { return now }
	use := func() {
		t.Helper()
		done, err := a.allocate(ctx, b, has("dry", "10.0.0.9", 30009), nil, true)
		if err != nil {
			t.Fatal(err)
		}
		done(true)
	}
	state := func() string {
		var ips []string
		all, _ := b.List(ctx, addressesResource, "")
		for _, obj := range all {
			ips = append(ips, obj.GetName())
		}
		return fmt.Sprint(ips, b.ports(t))
	}
	use()
	if diff := cmp.Diff("[10.0.0.1 10.0.0.2 10.0.0.3] [30001 30002 30003]", state()); diff != "" {
		t.Errorf("at the start (-want +got):\n%s", diff)
	}
	b.store(has("late", "10.0.0.2", 30002)) // another server was about to store it
	now = now.Add(leakAge)
	use()
	if diff := cmp.Diff("[10.0.0.2 10.0.0.3] [30002 30003]", state()); diff != "" {
		t.Errorf("after a minute (-want +got):\n%s", diff)
	}
}

// TestDryRunPorts leaves no trace, and gives ports as kube-apiserver's dry runs do.
func TestDryRunPorts(t *testing.T) {
	b := newKeepingShelf()
	a := newAllocator([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")})
	svc := service("s", func(s *corev1.ServiceSpec) {
		s.Type = corev1.ServiceTypeNodePort
		s.Ports = append(s.Ports, corev1.ServicePort{Port: 81, NodePort: 1}, corev1.ServicePort{Port: 82})
	})
	done, err := a.allocate(context.Background(), b, svc, nil, true)
	if err != nil {
		t.Fatal(err)
	}
	done(true)
	if got := fmt.Sprint(nodePorts(svc)); got != "[32769 1 32770]" {
		t.Errorf("ports %s", got)
	}
	if left := b.ports(t); len(left) > 0 {
		t.Errorf("in use after a dry run: %v", left)
	}
}

// TestAddressOutOfRange is refused in other words by a dry run, as upstream has it.
func TestAddressOutOfRange(t *testing.T) {
	b := newKeepingShelf()
	a := newAllocator([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")})
	for _, c := range []struct {
		ip   string
		dry  bool
		want string
	}{
		{"1.2.3.4", false, "the provided network does not match the current range"},
		{"1.2.3.4", true, "the provided IP (1.2.3.4) is not in the valid range. The range of valid IPs is 10.0.0.0/24"},
		{"10.0.0.255", false, "the provided network does not match the current range"},
		{"10.0.0.0", true, "the provided IP (10.0.0.0) is not in the valid range. The range of valid IPs is 10.0.0.0/24"},
		{"10.0.0.7", true, ""},
	} {
		_, err := a.allocate(context.Background(), b, service("s", func(s *corev1.ServiceSpec) { s.ClusterIP = c.ip }), nil, c.dry)
		if got := fmt.Sprint(err); c.want == "" && err != nil || !strings.Contains(got, c.want) {
			t.Errorf("%s, dry run %v: %s", c.ip, c.dry, got)
		}
	}
}
