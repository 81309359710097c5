// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package announce makes a node answer for addresses of load balancers on its network, by ARP and NDP. The controller of load balancers
// chooses the node of each address, and writes it into the Service ([v1alpha1.LoadBalancerNodesAnnotation]).
//
//	announce.go  which addresses; the loop
//	link.go      the addresses on the machine's links
//	arp.go       tells neighbours that an address has moved here
//
// IPv4 addresses are on the device mortise-lb: Linux answers ARP requests for them on every link. IPv6 addresses are also on the link of
// their network, since Linux answers NDP only for the link's own.
//
// If another node could take over, the node renews its Lease every second, by which the controller sees a failure in four seconds, and the
// addresses are valid for five seconds only: when the process ends, the kernel drops them, so that two nodes never answer for long. A node
// without others keeps its addresses when the process ends.
package announce

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
)

// The intervals of a node that others could relieve.
const (
	beat  = time.Second     // between two renewals of the Lease
	valid = 5 * time.Second // for which the kernel keeps the addresses
)

// simulated is the label of nodes without a network.
const simulated = "mortise.dev/simulated"

// Options configure the announcements. All fields but Logger are required.
type Options struct {
	NodeName  string
	Informers informers.SharedInformerFactory // prepared by Prepare, started by the caller
	Client    kubernetes.Interface            // as the node
	Logger    *slog.Logger                    // nil discards logs
}

// Prepare adds the required informers to a factory that has not started.
func Prepare(f informers.SharedInformerFactory) {
	f.Core().V1().Services().Informer()
	f.Core().V1().Nodes().Informer()
}

// Wanted returns the addresses that a node announces, in order: those of Services that name the node.
func Wanted(self string, services []*corev1.Service) []netip.Addr {
	found := map[netip.Addr]bool{}
	for _, svc := range services {
		text := svc.Annotations[v1alpha1.LoadBalancerNodesAnnotation]
		if text == "" || svc.Spec.Type != corev1.ServiceTypeLoadBalancer {
			continue
		}
		nodes := v1alpha1.LoadBalancerNodes(text)
		for _, in := range svc.Status.LoadBalancer.Ingress {
			a, err := netip.ParseAddr(in.IP)
			if a = a.Unmap(); err == nil && nodes[a] == self && a.IsGlobalUnicast() {
				found[a] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), netip.Addr.Compare)
}

// relieved reports whether another node could announce the addresses.
func relieved(self string, nodes []*corev1.Node) bool {
	return slices.ContainsFunc(nodes, func(n *corev1.Node) bool {
		return n.Name != self && n.Labels[simulated] != "true" && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	})
}

// Run announces the addresses until ctx is done.
func Run(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	changed := make(chan struct{}, 1)
	wake := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	services, nodes := o.Informers.Core().V1().Services(), o.Informers.Core().V1().Nodes()
	waits := []cache.InformerSynced{}
	for i, wakes := range map[cache.SharedIndexInformer]func(any) bool{
		services.Informer(): isAnnounced, nodes.Informer(): func(any) bool { return true },
	} {
		heed := func(obj any) {
			if wakes(obj) {
				wake(obj)
			}
		}
		r, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: heed, UpdateFunc: func(before, now any) { heed(before); heed(now) }, DeleteFunc: heed,
		})
		if err != nil {
			return fmt.Errorf("watch load balancers: %w", err)
		}
		defer func() { _ = i.RemoveEventHandler(r) }() // of an informer that has stopped itself
		waits = append(waits, r.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), waits...) {
		return nil
	}
	a := &announcer{Options: o, has: map[netip.Addr]bool{}}
	ticker := time.NewTicker(beat)
	ticker.Stop()
	defer ticker.Stop()
	ticking := false
	for {
		all, err1 := services.Lister().List(labels.Everything())
		others, err2 := nodes.Lister().List(labels.Everything())
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("list load balancers: %w", err)
		}
		want, shared := Wanted(o.NodeName, all), relieved(o.NodeName, others)
		a.apply(want, shared)
		if again := len(want) > 0 && (shared || a.failed != ""); again != ticking {
			if ticking = again; ticking {
				ticker.Reset(beat)
			} else {
				ticker.Stop()
			}
		}
		if len(want) > 0 && shared {
			a.renew(ctx)
		}
		select {
		case <-ctx.Done():
			if shared {
				a.apply(nil, false)
			}
			return nil
		case <-ticker.C:
		case <-changed:
		}
	}
}

// isAnnounced reports whether an event of a Service may change what nodes announce.
func isAnnounced(obj any) bool {
	svc, ok := obj.(*corev1.Service)
	return !ok || svc.Annotations[v1alpha1.LoadBalancerNodesAnnotation] != ""
}

// announcer has what the node announces.
type announcer struct {
	Options
	has    map[netip.Addr]bool
	renews time.Time // of the Lease, the last time
	failed string    // the logged failure
}

// apply announces these addresses and no others. The kernel keeps them only for a while if another node could relieve this one.
func (a *announcer) apply(want []netip.Addr, shared bool) {
	lifetime := time.Duration(0)
	if shared {
		lifetime = valid
	}
	err := assign(want, lifetime)
	next := map[netip.Addr]bool{}
	for _, address := range want {
		if err == nil && !a.has[address] {
			err = tell(address)
			if err == nil {
				a.Logger.Info("Announced an address of a load balancer", "address", address)
			}
		}
		next[address] = err == nil
	}
	a.has = next
	text := ""
	if err != nil {
		if text = err.Error(); text != a.failed {
			a.Logger.Error("Could not announce an address of a load balancer, retrying", "error", err)
		}
	}
	a.failed = text
}

// renew renews the node's Lease, unless it did so a moment ago.
func (a *announcer) renew(ctx context.Context) {
	now := time.Now()
	if now.Sub(a.renews) < beat*3/4 {
		return
	}
	a.renews = now
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": metav1.NewMicroTime(now)}})
	if err != nil {
		return // of a map of texts
	}
	leases := a.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	_, err = leases.Patch(ctx, a.NodeName, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil && ctx.Err() == nil {
		a.Logger.Debug("Could not renew the node's Lease while it announces addresses", "error", err)
	}
}
