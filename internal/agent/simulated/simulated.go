// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package simulated implements nodes without containers: they register, renew their Leases, and take their pods through their phases, but
// nothing runs. It needs neither root nor a container runtime, and one process can have thousands of them.
//
// A simulated node is marked as such: its label mortise.dev/simulated is "true", its runtime version and the IDs of its containers begin
// with simulated://, and a container's log is one line that says that the container is simulated.
//
// # What a simulated container does
//
//   - It starts and is ready immediately (probes succeed), and runs until its pod is deleted.
//   - A container whose command is sleep ends after that time; so do true, false, and a shell script of these and exit (life.go).
//   - Other containers of a Job's pod with restartPolicy Never or OnFailure succeed after a second.
//   - On a pod with such a restartPolicy, the annotation simulated.mortise.dev/run-for: 5s sets the time, and
//     simulated.mortise.dev/exit-code: "1" the exit code. A container restarts after a second, if it has to.
//   - Init containers succeed immediately, unless their command sleeps or fails. activeDeadlineSeconds applies. A change of the image
//     restarts the container.
//   - A deleted pod stops immediately, whatever its grace period.
//   - [Phases] delay the start and the readiness of pods, and set how long those of Jobs run.
//   - It uses the CPU and memory that annotations of its pod or its node's Phases declare (usage.go).
//
// # Nodes
//
// The package creates groups of equal nodes ([Group]). It also simulates nodes that a client creates with the label [Guest]: they keep
// the contents of their objects, and the package serves them as long as they have the label (guests.go).
//
// # How it works
//
// There is no runtime, so its state is a pure function of the pod's own last status and the time (runtime.go); package
// podstatus then computes the status, as on a real node. One informer, one queue and a few workers serve all pods of all
// nodes; another queue, with its heap of due times, serves all heartbeats. Memory holds addresses only, so a restart
// continues from the API server's state.
package simulated

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

// Label is the label, with the value "true", of nodes that are simulated.
const Label = "mortise.dev/simulated"

// AnnotationInProcess is the annotation, with the value "true", of simulated nodes that run in the API server's process. Such a server
// deletes them when it starts without simulated nodes.
const AnnotationInProcess = "simulated.mortise.dev/in-process"

// The annotations on pods.
const (
	AnnotationRunFor   = "simulated.mortise.dev/run-for"
	AnnotationExitCode = "simulated.mortise.dev/exit-code"
	// The usage of each container of the pod, as quantities.
	AnnotationCPUUsage    = "simulated.mortise.dev/cpu-usage"
	AnnotationMemoryUsage = "simulated.mortise.dev/memory-usage"
)

// Options configure the nodes. Config or Client is required.
type Options struct {
	// Config connects to the API server; Client replaces it.
	Config *rest.Config
	Client kubernetes.Interface
	// Groups are the nodes. Empty: one group of Nodes nodes (0: one) with the name prefix NamePrefix (empty: simulated) and the Capacity
	// below. The names are PREFIX-0, PREFIX-1 …
	Groups     []Group
	Nodes      int
	NamePrefix string
	// Alone is the name of the only node, which authenticates as itself with Config and reads only its own objects. The cluster assigns its
	// podCIDR. Groups, Nodes, NamePrefix and PodCIDR have no effect then.
	Alone string
	// Phases are the durations of pods' phases on guests, and on nodes without a group that sets them.
	Phases Phases
	// PodCIDR is divided among the nodes; empty: 10.244.0.0/16, or 100.64.0.0/10 for more than 256 nodes.
	PodCIDR string
	// Capacity of each node; nil: 32 CPUs, 256 GiB of memory, 1 TiB of disk, 110 pods.
	Capacity corev1.ResourceList
	// Version is the kubelet version that the nodes report.
	Version string
	// ExternalCloud lets a cloud's controller manager initialize the nodes: they have its taint, and no addresses until it sets them.
	ExternalCloud bool
	// Heartbeat is the time between renewals of a lease; 0: 10 s, and 20 s for more than 500 nodes.
	Heartbeat time.Duration
	// Listener and Serve serve the nodes' HTTP APIs; Listener returns TLS connections (see [Listen]). Nil: there is no API; Serve is
	// called without a listener, and may still find the nodes. A single node has the listener's address, all others have their own.
	Listener net.Listener
	Serve    nodeapi.ServeNodesFunc
	// TLS is Listener's configuration. The nodes publish the key of a certificate that the cluster has not signed.
	TLS *tls.Config
	// Clock; nil: the real one.
	Clock clock.WithTicker
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

// fleet has all nodes.
type fleet struct {
	o         Options
	client    kubernetes.Interface
	clock     clock.WithTicker
	log       *slog.Logger
	started   time.Time
	port      int32
	nodes     nodes
	own       int           // nodes of the groups
	addresses nodeAddresses // of guests
	pods      podCache
	podQueue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
	due       workqueue.TypedRateLimitingInterface[string] // names of nodes
	followers
}

// nodes are the known nodes by name. Guests come and go.
type nodes struct {
	mu      sync.RWMutex
	by      map[string]*node
	address map[netip.Addr]*node
}

func (n *nodes) get(name string) *node {
	if name == "" {
		return nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.by[name]
}

func (n *nodes) set(name string, to *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if was := n.by[name]; was != nil {
		delete(n.address, was.address)
	}
	if to == nil {
		delete(n.by, name)
		return
	}
	n.by[name], n.address[to.address] = to, to
}

// having returns the node with the address, or nil.
func (n *nodes) having(address netip.Addr) *node {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.address[address]
}

func (n *nodes) all() []*node {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return slices.Collect(maps.Values(n.by))
}

// Run runs the nodes until ctx is done. Their objects stay.
func Run(ctx context.Context, o Options) error {
	f, err := newFleet(o)
	if err != nil {
		return err
	}
	return f.run(ctx)
}

// complete sets the defaults.
func (o *Options) complete() {
	o.Version = cmp.Or(o.Version, "v1.37.1+mortise")
	if o.Capacity == nil {
		o.Capacity = corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("256Gi"),
			corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"), corev1.ResourcePods: resource.MustParse("110"),
		}
	}
	if o.Alone != "" {
		o.Groups, o.Nodes, o.NamePrefix, o.PodCIDR = nil, 1, o.Alone, ""
	}
	o.NamePrefix = cmp.Or(o.NamePrefix, "simulated")
	if len(o.Groups) == 0 {
		o.Groups = []Group{{NamePrefix: o.NamePrefix, Count: o.Nodes, Phases: o.Phases}}
	}
	o.Groups = slices.Clone(o.Groups)
	o.Nodes = 0
	for i := range o.Groups {
		o.Groups[i].Count = max(o.Groups[i].Count, 1)
		o.Nodes += o.Groups[i].Count
	}
	if o.PodCIDR == "" {
		if o.PodCIDR = "10.244.0.0/16"; o.Nodes > 256 {
			o.PodCIDR = "100.64.0.0/10"
		}
	}
	if o.Heartbeat == 0 {
		if o.Heartbeat = 10 * time.Second; o.Nodes > 500 {
			o.Heartbeat = 20 * time.Second
		}
	}
}

func newFleet(o Options) (*fleet, error) {
	o.complete()
	f := &fleet{o: o, client: o.Client, clock: o.Clock, log: o.Logger, own: o.Nodes}
	f.nodes.by, f.nodes.address, f.addresses.own = map[string]*node{}, map[netip.Addr]*node{}, o.Nodes
	if f.clock == nil {
		f.clock = clock.RealClock{}
	}
	f.started = f.clock.Now()
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	if f.client == nil {
		if o.Config == nil {
			return nil, errors.New("run simulated nodes: no way to reach the API server is given")
		}
		config := rest.CopyConfig(o.Config)
		config.QPS = -1 // many clients in one, each well below its limit
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("make client: %w", err)
		}
		f.client = client
		if o.Alone == "" {
			f.client = sharedobjects.Clientset(client)
		}
	}
	alone := netip.MustParseAddr("127.0.0.1")
	if o.Listener != nil {
		at, err := netip.ParseAddrPort(o.Listener.Addr().String())
		if err != nil {
			return nil, fmt.Errorf("read listener's address: %w", err)
		}
		f.port = int32(at.Port())
		if !at.Addr().IsUnspecified() {
			alone = at.Addr().Unmap()
		}
	}
	subnets, err := cut(o.PodCIDR, o.Nodes)
	if err != nil {
		return nil, err
	}
	index := 0
	for k := range o.Groups {
		g := &f.o.Groups[k]
		for i := range g.Count {
			n := &node{name: cmp.Or(o.Alone, fmt.Sprintf("%s-%d", g.NamePrefix, i)), index: index, turn: i, group: g, pool: newPool(subnets[index]),
				address: addressOf(index)}
			if o.Alone != "" {
				n.address = alone
			}
			n.capacity, n.size = f.capacity(n)
			f.nodes.set(n.name, n)
			index++
		}
	}
	return f, nil
}

// run registers the nodes, then serves their pods.
func (f *fleet) run(ctx context.Context) error {
	informer := f.podsFollowed().Core().V1().Pods()
	var err error
	if f.pods, err = newPodCache(informer); err != nil {
		return err
	}
	f.podQueue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[cache.ObjectName](5*time.Millisecond, 10*time.Second),
		workqueue.TypedRateLimitingQueueConfig[cache.ObjectName]{Clock: f.clock})
	f.due = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 10*time.Second),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: f.clock})
	handler, err := informer.Informer().AddEventHandler(f.handler())
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer f.podQueue.ShutDown() // ends the workers, for which the deferred Wait waits
	defer f.due.ShutDown()
	wg.Go(func() { informer.Informer().RunWithContext(ctx) })

	var registered sync.WaitGroup
	own := f.nodes.all()
	registered.Add(len(own))
	for _, n := range own {
		n.registered = sync.OnceFunc(registered.Done)
		f.due.Add(n.name)
	}
	for range min(8, len(own)) {
		wg.Go(func() { f.beatAll(ctx) })
	}
	ready := make(chan struct{})
	wg.Go(func() {
		registered.Wait()
		close(ready)
	})
	defer func() { // ends the goroutine above
		for _, n := range own {
			n.registered()
		}
	}()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil
	}
	f.log.Info("Registered simulated nodes", "nodes", f.own)

	serving := make(chan error, 1)
	if f.o.Serve != nil {
		wg.Go(func() { serving <- f.o.Serve(ctx, f.at, f.o.Listener) })
	}
	if !cache.WaitFor(ctx, "", handler.HasSyncedChecker()) {
		return nil
	}
	f.claim("")
	if f.o.Alone == "" {
		if err := f.receive(ctx, &wg); err != nil {
			return err
		}
	}
	for range 8 {
		wg.Go(func() { f.podsAll(ctx) })
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-serving:
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("serve simulated nodes' API: %w", err)
	}
}
