// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/internal/agent/netfilter"
	"github.com/mortise-dev/mortise/internal/agent/proxy"
)

// proxiedChild is the argument that makes the program a node's service proxy, in a network namespace of its own with the API server
// that it follows; the backend that it writes rules by comes after it.
const proxiedChild = "service-proxy-by-"

func proxiedBy() []netfilter.Backend {
	return []netfilter.Backend{netfilter.NFTables, netfilter.IPTables}
}

const (
	proxiedServices = 10_000
	proxiedChanges  = 100 // of one Service each
	balanced        = 1_000
)

// proxied is what that process measured.
type proxied struct {
	First, FirstCPU, Again time.Duration
	Changes                []time.Duration
	ChangeCPU              time.Duration
	Addresses              int // of Services, that the kernel has in the end

	Balanced, BalancedCPU time.Duration // until the load balancers too have their addresses, and the kernel their rules
}

// serviceRules is a node's proxy with 10,000 Services of two endpoints each, in a real kernel, by each backend: until all rules are there,
// and from the request that changes one of them until its rules are. The bounds are those of nftables; iptables is what is left without it.
func serviceRules(ctx context.Context, _ *bench, add adder) error {
	for _, backend := range proxiedBy() {
		p, err := proxyOnce(ctx, backend)
		if err != nil {
			return err
		}
		var whole, one report.Bound
		if backend == netfilter.NFTables {
			whole, one = report.AtMost(2), report.AtMost(50)
		}
		add(fmt.Sprintf("%s Services of 2 endpoints, by %s: all written to an empty kernel", report.Number(proxiedServices), backend),
			report.Value{Unit: "s", Number: p.First.Seconds(), Bound: whole}, report.Value{Name: "CPU", Unit: "s", Number: p.FirstCPU.Seconds()},
			report.Value{Name: "by a proxy that starts again", Unit: "s", Number: p.Again.Seconds(), Bound: whole})
		add(fmt.Sprintf("  an endpoint of one of them changed, from the request until the kernel has it, %d times", proxiedChanges),
			report.Value{Name: "p50", Unit: "ms", Number: load.Quantile(p.Changes, 50), Bound: one},
			report.Value{Name: "p99", Unit: "ms", Number: load.Quantile(p.Changes, 99)},
			report.Value{Name: "CPU", Unit: "ms", Number: load.Ms(p.ChangeCPU) / proxiedChanges})
		if backend == netfilter.NFTables {
			add(fmt.Sprintf("  %s of type LoadBalancer beside them, until each has its address and the kernel its rules", report.Number(balanced)),
				report.Value{Unit: "s", Number: p.Balanced.Seconds(), Bound: report.AtMost(10)},
				report.Value{Name: "CPU each", Unit: "ms", Number: load.Ms(p.BalancedCPU) / balanced, Bound: report.AtMost(10)})
		}
	}
	return nil
}

// proxyOnce runs that process.
func proxyOnce(ctx context.Context, backend netfilter.Backend) (p proxied, err error) {
	c, err := ownProgram(ctx, proxiedChild+string(backend))
	if err != nil {
		return p, err
	}
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := c.Output()
	if err != nil {
		return p, fmt.Errorf("run a proxy in a network of its own (as root): %w", err)
	}
	if err := json.Unmarshal(out, &p); err != nil {
		return p, fmt.Errorf("read what the proxy measured: %w", err)
	}
	if p.Addresses < proxiedServices {
		return p, fmt.Errorf("the kernel has %d addresses for %d Services", p.Addresses, proxiedServices)
	}
	return p, nil
}

// beProxied is that process.
func beProxied(ctx context.Context, backend netfilter.Backend, out io.Writer) (err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	s := &embed.Server{Controllers: []string{"service-lb"}, Node: embed.NodeNone}
	if err := s.Start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	config := s.Config()
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := makeProxied(ctx, client); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := informers.NewSharedInformerFactory(client, 0)
	if err := proxy.Prepare(shared); err != nil {
		return err
	}
	defer shared.Shutdown()
	defer cancel()
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())

	var measured proxied
	if measured.First, measured.FirstCPU, err = oneProxy(ctx, backend, client, shared, nil); err != nil {
		return err
	}
	if measured.Again, _, err = oneProxy(ctx, backend, client, shared, func(synced <-chan struct{}) (err error) {
		if measured.Changes, measured.ChangeCPU, err = changeProxied(ctx, client, synced); err != nil || backend != netfilter.NFTables {
			return err
		}
		measured.Balanced, measured.BalancedCPU, err = balanceProxied(ctx, client, synced)
		return err
	}); err != nil {
		return err
	}
	if measured.Addresses, err = proxiedAddresses(ctx, backend); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(measured)
}

// proxiedAddresses counts the addresses of Services that the kernel has.
func proxiedAddresses(ctx context.Context, backend netfilter.Backend) (int, error) {
	if backend == netfilter.IPTables {
		x, err := netfilter.OpenXTables(false)
		if err != nil {
			return 0, err
		}
		saved, err := x.Save(ctx)
		found := map[string]bool{}
		for line := range strings.Lines(saved) {
			if rule, is := strings.CutPrefix(line, "-A MORTISE-SERVICES-"); is && strings.Contains(rule, " --dport ") {
				found[strings.Fields(rule)[2]] = true // 07 -d 10.96.0.7/32
			}
		}
		return len(found), err
	}
	nft, err := proxy.Open(knftables.IPv4Family, "mortise-proxy")
	if err != nil {
		return 0, err
	}
	all, err := nft.ListElements(ctx, "map", "service-ips")
	if err != nil {
		return 0, fmt.Errorf("list what the kernel has: %w", err)
	}
	return len(all), nil
}

// proxiedEndpoints is the slice of a Service; the serial changes its second endpoint.
func proxiedEndpoints(i, serial int) *discoveryv1.EndpointSlice {
	name := fmt.Sprint("svc", i)
	within := func(net byte, n int) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{netip.AddrFrom4([4]byte{10, net, byte(n / 250), byte(n%250 + 1)}).String()}}
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{within(244, i), within(245, i+serial)},
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
}

func makeProxied(ctx context.Context, client kubernetes.Interface) error {
	node, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}, metav1.CreateOptions{})
	if err == nil {
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		_, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("make node: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(16)
	for i := range proxiedServices {
		g.Go(func() error {
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("svc", i), Namespace: "default"},
				Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
			}
			_, err := client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{})
			if err == nil {
				_, err = client.DiscoveryV1().EndpointSlices("default").Create(ctx, proxiedEndpoints(i, 0), metav1.CreateOptions{})
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("make services: %w", err)
	}
	return nil
}

// oneProxy runs a proxy until all is written and what is to happen then has happened, and says how long the first took.
func oneProxy(ctx context.Context, backend netfilter.Backend, client kubernetes.Interface, shared informers.SharedInformerFactory,
	then func(synced <-chan struct{}) error) (took, cpu time.Duration, err error) {
	synced := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began, before := time.Now(), treeCPU()
	ended := make(chan error, 1)
	go func() {
		ended <- proxy.Run(ctx, proxy.Options{
			NodeName: "here", Client: client, Backend: backend, Informers: shared, Bridged: true,
			PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/15")},
			Synced:   func() { synced <- struct{}{} },
		})
	}()
	select {
	case <-synced:
		took, cpu = time.Since(began), treeCPU()-before
	case err := <-ended:
		return 0, 0, errors.Join(errors.New("the proxy has ended"), err)
	}
	if then != nil {
		err = then(synced)
	}
	cancel()
	return took, cpu, errors.Join(err, <-ended)
}

// changeProxied changes one Service after the other, each when the proxy has been quiet for a while.
func changeProxied(ctx context.Context, client kubernetes.Interface, synced <-chan struct{}) (all []time.Duration, cpu time.Duration,
	err error) {
	quiet := time.NewTicker(200 * time.Millisecond)
	defer quiet.Stop()
	before := treeCPU()
	for i := range proxiedChanges {
		select {
		case <-quiet.C:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		select {
		case <-synced: // of what came before the first change
		default:
		}
		changed, err := json.Marshal(map[string]any{"endpoints": proxiedEndpoints(i*97, 1).Endpoints})
		if err != nil {
			return nil, 0, err
		}
		began := time.Now()
		if _, err := client.DiscoveryV1().EndpointSlices("default").Patch(ctx, fmt.Sprint("svc", i*97), types.MergePatchType, changed,
			metav1.PatchOptions{}); err != nil {
			return nil, 0, fmt.Errorf("change endpoints: %w", err)
		}
		select {
		case <-synced:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		all = append(all, time.Since(began))
	}
	return all, treeCPU() - before, nil
}

// treeCPU is the processor time of this process and of those that it started and that have ended.
func treeCPU() time.Duration {
	sum := time.Duration(0)
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

// balanceProxied makes Services of type LoadBalancer, each with a port of its own on the node's address, and waits until each has the
// address and the kernel their rules.
func balanceProxied(ctx context.Context, client kubernetes.Interface, synced <-chan struct{}) (took, cpu time.Duration, err error) {
	watched, err := client.CoreV1().Services("default").Watch(ctx, metav1.ListOptions{LabelSelector: "balanced=yes"})
	if err != nil {
		return 0, 0, fmt.Errorf("watch services: %w", err)
	}
	defer watched.Stop()
	done, changed := make(chan struct{}), make(chan struct{}, 1)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer close(done)
	listening.Go(func() { // the proxy waits for who listens
		for {
			select {
			case <-synced:
			case <-done:
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	})
	began, before := time.Now(), treeCPU()
	var g errgroup.Group
	g.SetLimit(16)
	for i := range balanced {
		g.Go(func() error {
			name := fmt.Sprint("lb", i)
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"balanced": "yes"}},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: new(false),
					Ports: []corev1.ServicePort{{Name: "http", Port: int32(1000 + i)}},
				},
			}
			_, err := client.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{})
			if err == nil {
				slice := proxiedEndpoints(i, 0)
				slice.Name, slice.Labels = name, map[string]string{discoveryv1.LabelServiceName: name}
				_, err = client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, 0, fmt.Errorf("make load balancers: %w", err)
	}
	for have := map[string]bool{}; len(have) < balanced; {
		e, open := <-watched.ResultChan()
		if !open {
			return 0, 0, errors.New("the watch of the load balancers ended")
		}
		if svc, ok := e.Object.(*corev1.Service); ok && len(svc.Status.LoadBalancer.Ingress) > 0 {
			have[svc.Name] = true
		}
	}
	for {
		n, err := proxiedAddresses(ctx, netfilter.NFTables)
		if err != nil {
			return 0, 0, err
		}
		if n >= proxiedServices+2*balanced {
			return time.Since(began), treeCPU() - before, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, 0, ctx.Err()
		}
	}
}
