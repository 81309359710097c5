// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package servicelb gives Services of type LoadBalancer addresses, on machines without a cloud: the addresses of the ready nodes, or of a
// pool. The nodes' service proxy forwards what arrives at them. On simulated nodes, Services get addresses that lead nowhere, so that
// controllers can be tested.
//
//	book.go   the owner of each port of each address; pure
//	pool.go   ranges of addresses; pure
//	nodes.go  what nodes offer, and which node announces an address of a pool; pure
//	status.go a Service with what it got; pure
//
// The controller leaves alone Services with a spec.loadBalancerClass other than its own ([v1alpha1.LoadBalancerClass]) and, if the cluster
// has an external cloud, those without a class. Status, finalizer and events are those of the service controller of a cloud.
package servicelb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	services, nodes := corev1.SchemeGroupVersion.WithResource("services"), corev1.SchemeGroupVersion.WithResource("nodes")
	addresses := &pool{}
	return controllers.Controller{
		Name:      "service-lb-controller",
		Account:   "service-controller",
		Component: "service-controller",
		Inputs: []schema.GroupVersionResource{
			services, nodes, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
			coordinationv1.SchemeGroupVersion.WithResource("leases"),
		},
		Outputs: []schema.GroupVersionResource{services},
		Settings: []controllers.Setting{{
			Flag: "load-balancer-pool", Field: "controllers.serviceLB.pool", Value: addresses,
			Usage: "Addresses for Services of type LoadBalancer, which nodes announce on their network: CIDRs and ranges FIRST-LAST. " +
				"Default: the nodes' own addresses.",
		}},
		New: func(d *controllers.Deps) (controllers.Runner, error) { return build(d, *addresses) },
	}
}

// byService is the index of EndpointSlices by Service.
const byService = "servicelb-service"

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	clock    clock.PassiveClock
	services listers.ServiceLister
	slices   cache.Indexer
	queue    *controllers.Queue[key]
	external bool // a cloud serves the Services without a class
	pool     pool
	api      netip.AddrPort

	// The worker's own: there is one.
	book *book
	// announcers are the nodes that announce addresses of the pool.
	announcers map[netip.Addr]string
	said       map[types.NamespacedName]string // the last warning of each Service that waits

	mu      sync.Mutex
	members map[string]member
	beats   map[string]beat
	current *view // nil: it has changed since
}

// key is what the queue holds: a Service, or a node that announces addresses.
type key struct {
	service types.NamespacedName
	node    string
}

// String returns the key for logs.
func (k key) String() string {
	if k.node != "" {
		return "node " + k.node
	}
	return k.service.String()
}

func build(d *controllers.Deps, addresses pool) (controllers.Runner, error) {
	services, nodes := d.Informers.Core().V1().Services(), d.Informers.Core().V1().Nodes()
	endpoints, leases := d.Informers.Discovery().V1().EndpointSlices(), d.Informers.Coordination().V1().Leases()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock, services: services.Lister(), slices: endpoints.Informer().GetIndexer(),
		queue: controllers.NewQueue[key](d, "service", 1), external: d.Cluster.ExternalCloud, pool: addresses,
		book: newBook(), announcers: map[netip.Addr]string{}, said: map[types.NamespacedName]string{},
		members: map[string]member{}, beats: map[string]beat{},
	}
	if a := d.Cluster.AdvertiseAddress; a.IsValid() {
		c.api = netip.AddrPortFrom(a, uint16(d.Cluster.AdvertisePort))
	}
	err := errors.Join(
		controllers.Index(endpoints.Informer(), byService, func(obj any) ([]string, error) {
			if s, ok := obj.(*discoveryv1.EndpointSlice); ok && s.Labels[discoveryv1.LabelServiceName] != "" {
				return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
			}
			return nil, nil
		}),
		controllers.Subscribe(d, services.Informer(), controllers.Handler[*corev1.Service]{
			Add: c.enqueue,
			Update: func(before, svc *corev1.Service) {
				if before.Spec.Type == corev1.ServiceTypeLoadBalancer {
					c.queue.Add(key{service: controllers.Key(svc)})
					return
				}
				c.enqueue(svc)
			},
			Delete: c.enqueue,
		}),
		controllers.Subscribe(d, endpoints.Informer(), controllers.OnAny(func(s *discoveryv1.EndpointSlice) {
			svc, err := c.services.Services(s.Namespace).Get(s.Labels[discoveryv1.LabelServiceName])
			if err == nil && isLocal(svc) {
				c.enqueue(svc)
			}
		})),
		controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
			Add:    func(n *corev1.Node) { c.observe(n.Name, n) },
			Update: func(_, n *corev1.Node) { c.observe(n.Name, n) },
			Delete: func(n *corev1.Node) { c.observe(n.Name, nil) },
		}),
		controllers.Subscribe(d, leases.Informer(), controllers.Handler[*coordinationv1.Lease]{Add: c.hear, Update: c.renewed}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		if err := c.recall(); err != nil {
			return err
		}
		return c.queue.Run(ctx, c.sync)
	}), err
}

// enqueue enqueues a Service that has or wants a load balancer.
func (c *controller) enqueue(svc *corev1.Service) {
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer || slices.Contains(svc.Finalizers, finalizer) {
		c.queue.Add(key{service: controllers.Key(svc)})
	}
}

// observe notes a node's state, and enqueues all Services if it changes what they get. Nil: the node is gone.
func (c *controller) observe(name string, n *corev1.Node) {
	c.mu.Lock()
	was, had := c.members[name]
	is, ok := member{}, false
	if n != nil {
		is, ok = memberOf(n)
	}
	if delete(c.members, name); ok {
		c.members[name] = is
	}
	if n == nil {
		delete(c.beats, name)
	}
	changed := was != is || had != ok
	if changed {
		c.current = nil
	}
	// Of simulated nodes, only the first and the last one make a difference.
	alike := (!had || was.simulated) && (!ok || is.simulated) && (had && ok || len(c.members) > 1)
	c.mu.Unlock()
	if changed && !alike {
		c.enqueueAll()
	}
}

// enqueueAll enqueues all Services of type LoadBalancer, those that have an address first, and of these the oldest first: what several wait
// for goes to the first.
func (c *controller) enqueueAll() {
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return
	}
	oldestFirst(all)
	for _, svc := range all {
		if len(svc.Status.LoadBalancer.Ingress) > 0 {
			c.enqueue(svc)
		}
	}
	for _, svc := range all {
		c.enqueue(svc)
	}
}

// view returns the state of the nodes. The caller must not change it.
func (c *controller) view() *view {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		return c.current
	}
	v := &view{pool: c.pool, api: c.api, silent: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(c.members)) {
		v.members = append(v.members, c.members[name])
		if c.beats[name].silent {
			v.silent[name] = true
		}
	}
	c.current = v
	return v
}

// recall notes in the book what the Services have, the oldest first, before anything is given.
func (c *controller) recall() error {
	all, err := c.services.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	all = slices.DeleteFunc(all, func(svc *corev1.Service) bool { return !c.serves(svc) })
	oldestFirst(all)
	for _, svc := range all {
		c.book.occupy(claimOf(svc), holds(svc))
		maps.Copy(c.announcers, v1alpha1.LoadBalancerNodes(svc.Annotations[v1alpha1.LoadBalancerNodesAnnotation]))
	}
	return nil
}

// oldestFirst sorts Services by their age, those of the same second by their names.
func oldestFirst(all []*corev1.Service) {
	slices.SortFunc(all, func(a, b *corev1.Service) int {
		if d := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); d != 0 {
			return d
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}

// serves reports whether the controller gives a Service addresses.
func (c *controller) serves(svc *corev1.Service) bool {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.DeletionTimestamp != nil {
		return false
	}
	return c.owns(svc)
}

// owns reports whether a Service of type LoadBalancer is the controller's.
func (c *controller) owns(svc *corev1.Service) bool {
	class := svc.Spec.LoadBalancerClass
	return class == nil && !c.external || class != nil && *class == v1alpha1.LoadBalancerClass
}

func (c *controller) sync(ctx context.Context, k key) error {
	if k.node != "" {
		c.listen(k.node)
		return nil
	}
	svc, err := c.services.Services(k.service.Namespace).Get(k.service.Name)
	switch {
	case apierrors.IsNotFound(err):
		c.release(k.service)
		return nil
	case err != nil:
		return fmt.Errorf("get service: %w", err)
	case c.serves(svc):
		return c.ensure(ctx, svc)
	}
	had := len(c.book.held[k.service]) > 0
	c.release(k.service)
	// The finalizer of a Service that is not of type LoadBalancer any more may be a cloud's.
	mine := had || !c.external
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		mine = c.owns(svc)
	}
	if !mine || !slices.Contains(svc.Finalizers, finalizer) {
		return nil
	}
	c.recorder.Event(svc, corev1.EventTypeNormal, "DeletingLoadBalancer", "Deleting load balancer")
	if err := c.write(ctx, svc, cleared(svc)); err != nil {
		return err
	}
	c.recorder.Event(svc, corev1.EventTypeNormal, "DeletedLoadBalancer", "Deleted load balancer")
	return nil
}

func (c *controller) release(service types.NamespacedName) {
	delete(c.said, service)
	c.wake(c.book.release(service))
}

func (c *controller) wake(waiting []types.NamespacedName) {
	for _, service := range waiting {
		c.queue.Add(key{service: service})
	}
}

// ensure gives a Service its addresses.
func (c *controller) ensure(ctx context.Context, svc *corev1.Service) error {
	v, local := c.view(), c.local(svc)
	claim := claimOf(svc)
	offer := v.offerTo(holds(svc), local)
	g := c.book.settle(claim, offer)
	c.wake(g.wake)
	if len(g.addresses) == 0 && g.taken == "" && !claim.address.IsValid() && offer.pool.empty() && len(offer.each) == 0 {
		c.warn(svc, "UnAvailableLoadBalancer", "There are no available nodes for LoadBalancer")
	} else if len(g.addresses) == 0 && g.taken == "" {
		g.taken = "no node has an address that fits"
		if claim.address.IsValid() {
			g.taken = fmt.Sprintf("no node has the address %s", claim.address)
		}
	}
	announcers := map[netip.Addr]string{}
	if !c.pool.empty() {
		for _, a := range g.addresses {
			if c.announcers[a] = v.announcer(a, c.announcers[a], local); c.announcers[a] != "" {
				announcers[a] = c.announcers[a]
			}
		}
	}
	want := served(svc, claim, g, announcers, metav1.NewTime(c.clock.Now()))
	if equality.Semantic.DeepEqual(svc.Finalizers, want.Finalizers) && equality.Semantic.DeepEqual(svc.Status, want.Status) &&
		svc.Annotations[v1alpha1.LoadBalancerNodesAnnotation] == want.Annotations[v1alpha1.LoadBalancerNodesAnnotation] {
		return nil
	}
	had, has := len(svc.Status.LoadBalancer.Ingress) > 0, len(g.addresses) > 0
	if !had {
		c.recorder.Event(svc, corev1.EventTypeNormal, "EnsuringLoadBalancer", "Ensuring load balancer")
	}
	if err := c.write(ctx, svc, want); err != nil {
		return err
	}
	switch {
	case g.taken != "":
		c.warn(svc, "SyncLoadBalancerFailed", "Error syncing load balancer: failed to ensure load balancer: "+g.taken)
	case has && had:
		c.recorder.Event(svc, corev1.EventTypeNormal, "UpdatedLoadBalancer", "Updated load balancer with new hosts")
	case has:
		c.recorder.Event(svc, corev1.EventTypeNormal, "EnsuredLoadBalancer", "Ensured load balancer")
	}
	if g.taken == "" && has {
		delete(c.said, claim.service)
	}
	return nil
}

// warn records a warning, unless it was the last one about the Service.
func (c *controller) warn(svc *corev1.Service, reason, text string) {
	if k := controllers.Key(svc); c.said[k] != text {
		c.said[k] = text
		c.recorder.Event(svc, corev1.EventTypeWarning, reason, text)
	}
}

// write writes the changes of a Service.
func (c *controller) write(ctx context.Context, have, want *corev1.Service) error {
	patch, err := patchTo(have, want)
	if err != nil || patch == nil {
		return err
	}
	services := c.client.CoreV1().Services(have.Namespace)
	_, err = services.Patch(ctx, have.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch service: %w", err)
	}
	return nil
}

// local returns the nodes with endpoints of a Service whose traffic stays on the node, true for those with ready ones; nil for other
// Services. An endpoint that is terminating and serves still counts: the node's proxy forwards to it while the node has no other.
func (c *controller) local(svc *corev1.Service) map[string]bool {
	if !isLocal(svc) {
		return nil
	}
	objects, err := c.slices.ByIndex(byService, svc.Namespace+"/"+svc.Name)
	if err != nil {
		return nil
	}
	out := map[string]bool{}
	for _, obj := range objects {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			if e.NodeName == nil {
				continue
			}
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			leaves := e.Conditions.Terminating != nil && *e.Conditions.Terminating && (e.Conditions.Serving == nil || *e.Conditions.Serving)
			if ready || leaves {
				out[*e.NodeName] = out[*e.NodeName] || ready
			}
		}
	}
	return out
}
