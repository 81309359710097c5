// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/knftables"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/netfilter"
)

// Primary in NodePortAddresses stands for the node's own addresses.
const Primary = "primary"

const (
	// gather is how long a first change waits for others: related objects change together.
	gather = 5 * time.Millisecond
	// sweepAfter is the delay before unused chains are deleted.
	sweepAfter = 2 * time.Second
	// wholeAfter is the interval at which all rules are written even without a known difference: another program may have flushed the tables.
	wholeAfter = time.Hour
	// retryFirst and retryMost are the delays after a failed transaction, unless the configuration sets the maximum.
	retryFirst, retryMost = time.Second, 30 * time.Second
)

// Options configure a proxy. NodeName, Client and Informers are required.
type Options struct {
	NodeName string
	Client   kubernetes.Interface // reads the Node
	// Informers watch Services, EndpointSlices and ServiceCIDRs. The caller of Run prepares them with Prepare and starts them, and may share
	// them.
	Informers informers.SharedInformerFactory

	PodCIDRs []netip.Prefix // of the cluster: traffic to Services from other addresses is masqueraded; none: no traffic is
	// NodePods replaces them by the node's own ranges, and PodInterface by the interface that traffic comes from, or a prefix of its name.
	NodePods           bool
	PodInterface       string
	PodInterfaceBegins bool
	// Address is the node's own address in its family, instead of the Node object's; the zero value: use the Node object's.
	Address netip.Addr
	// NodePortAddresses are the prefixes for node ports, or Primary; none means all addresses.
	NodePortAddresses []string
	MasqueradeAll     bool
	MasqueradeMark    uint32 // of packets to masquerade; 0: kube-proxy's
	// SyncPeriod is the maximum delay after a failed transaction; 0: 30 s. MinSyncPeriod is the minimum time between the starts of two
	// transactions.
	SyncPeriod, MinSyncPeriod time.Duration
	// Bridged means that traffic between pods on one bridge passes the rules (see Bridge). Otherwise such traffic to a Service is masqueraded.
	Bridged bool

	Metrics *Metrics
	Health  *Health // reports the proxy's health; nil: none
	Logger  *slog.Logger
	Clock   clock.WithTicker

	// Backend writes the rules; empty means nftables.
	Backend netfilter.Backend
	// Open returns a handle of an nftables table, like the function Open.
	Open func(family knftables.Family, table string) (knftables.Interface, error)
	// OpenXTables returns a handle of iptables, like netfilter's function of this name.
	OpenXTables func(v6 bool) (XTables, error)
	// Synced is called after each update of the rules, for tests.
	Synced func()

	forget func(family, *frontends) (uint, error)
	clear  func(context.Context, netfilter.Backend) error
}

// XTables are the iptables operations that the proxy needs.
type XTables interface {
	// Save lists all rules, like iptables-save; Restore writes the rules of a text, like iptables-restore --noflush.
	Save(context.Context) (string, error)
	Restore(ctx context.Context, text string) error
}

func (o Options) withDefaults() (Options, error) {
	if o.NodeName == "" {
		return o, errors.New("a proxy needs its node's name")
	}
	if err := CheckNodePortAddresses(o.NodePortAddresses); err != nil {
		return o, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.SyncPeriod = cmp.Or(o.SyncPeriod, retryMost)
	if o.Backend == "" {
		o.Backend = netfilter.NFTables
	}
	if o.Open == nil {
		o.Open = Open
	}
	if o.OpenXTables == nil {
		o.OpenXTables = func(v6 bool) (XTables, error) { return netfilter.OpenXTables(v6) }
	}
	if o.forget == nil {
		o.forget = forget
	}
	if o.clear == nil {
		o.clear = clearBackend
	}
	return o, nil
}

// mark returns the masquerade mark.
func (o *Options) mark() string {
	if o.MasqueradeMark == 0 {
		return masqueradeMark
	}
	return fmt.Sprintf("%#x", o.MasqueradeMark)
}

// book returns the rulebook of a family.
func (o *Options) book(f family) (rulebook, error) {
	if o.Backend == netfilter.IPTables {
		x, err := o.OpenXTables(f.v6)
		if err != nil {
			return nil, err
		}
		return newIPTables(f, x), nil
	}
	nft, err := o.Open(f.tableFamily(), tableName)
	if err != nil {
		return nil, err
	}
	return newNFTTable(f, nft), nil
}

// Open returns a handle of a table. It lists by netlink: nft's text of ten thousand chains takes a second.
func Open(f knftables.Family, table string) (knftables.Interface, error) {
	return knftables.New(f, table, knftables.UseNetlink)
}

// CheckNodePortAddresses validates such a list.
func CheckNodePortAddresses(list []string) error {
	for _, text := range list {
		if _, err := netip.ParsePrefix(text); err != nil && text != Primary {
			return fmt.Errorf("node port addresses: %q is neither a prefix nor %s", text, Primary)
		}
	}
	return nil
}

// byService is the index of EndpointSlices by Service.
const byService = "mortise-proxy/service"

// Prepare adds the required informers to a factory that has not started.
func Prepare(f informers.SharedInformerFactory) error {
	err := f.Discovery().V1().EndpointSlices().Informer().AddIndexers(cache.Indexers{byService: func(obj any) ([]string, error) {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			return []string{serviceOf(s).String()}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("index endpoint slices: %w", err)
	}
	f.Core().V1().Services().Informer()
	f.Networking().V1().ServiceCIDRs().Informer()
	return nil
}

func serviceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// follower collects the changes since the last transaction.
type follower struct {
	options Options
	wake    chan struct{}

	mu      sync.Mutex
	changed map[types.NamespacedName]bool
	all     bool
	self    self
}

func (f *follower) note(all bool, names ...types.NamespacedName) {
	f.mu.Lock()
	for _, n := range names {
		f.changed[n] = true
	}
	f.all = f.all || all
	f.mu.Unlock()
	f.options.Health.heard(f.options.Clock.Now())
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follower) take() (map[types.NamespacedName]bool, bool, self) {
	f.mu.Lock()
	defer f.mu.Unlock()
	changed, all := f.changed, f.all
	f.changed, f.all = map[types.NamespacedName]bool{}, false
	return changed, all, f.self
}

// whole reports whether all rules must be written.
func (f *follower) whole() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// Run maintains the rules until ctx ends, and then leaves them. If the backend does not work it returns an error immediately.
func Run(ctx context.Context, options Options) error {
	o, err := options.withDefaults()
	if err != nil {
		return err
	}
	f := &follower{options: o, wake: make(chan struct{}, 1), changed: map[types.NamespacedName]bool{}, all: true}
	own := informers.NewSharedInformerFactoryWithOptions(o.Client, 0, informers.WithTweakListOptions(func(l *metav1.ListOptions) {
		l.FieldSelector = fields.OneTermEqualSelector("metadata.name", o.NodeName).String()
	}))
	synced, stop, err := f.follow(own)
	defer stop()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer own.Shutdown()
	defer cancel()
	own.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	_, _, me := f.take()
	s, err := open(o, listed{o.Informers}, me)
	if err != nil {
		return err
	}
	defer s.end()
	f.note(true)
	return f.loop(ctx, s)
}

// follow handles events until it is stopped.
func (f *follower) follow(own informers.SharedInformerFactory) (synced []cache.InformerSynced, stop func(), err error) {
	services := f.options.Informers.Core().V1().Services().Informer()
	endpointSlices := f.options.Informers.Discovery().V1().EndpointSlices().Informer()
	ranges := f.options.Informers.Networking().V1().ServiceCIDRs().Informer()
	nodes := own.Core().V1().Nodes().Informer()
	var stops []func() error
	stop = func() {
		for _, s := range stops {
			_ = s() // of an informer that has stopped itself
		}
	}
	on := func(informer cache.SharedIndexInformer, heard func(states ...any)) error {
		r, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(obj any) { heard(obj) },
			UpdateFunc: func(old, now any) {
				if old.(metav1.Object).GetResourceVersion() != now.(metav1.Object).GetResourceVersion() {
					heard(now, old)
				}
			},
			DeleteFunc: func(obj any) {
				if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
					obj = gone.Obj
				}
				heard(obj)
			},
		})
		if err != nil {
			return fmt.Errorf("follow what the proxy needs: %w", err)
		}
		stops = append(stops, func() error { return informer.RemoveEventHandler(r) })
		synced = append(synced, r.HasSynced)
		return nil
	}
	err = errors.Join(
		on(services, func(states ...any) {
			f.options.Metrics.heard(f.options.Clock.Now(), func(m *Metrics) prometheus.Counter { return m.serviceChanges })
			if s, ok := states[0].(*corev1.Service); ok {
				f.note(false, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
			}
		}),
		on(endpointSlices, func(states ...any) {
			f.options.Metrics.heard(f.options.Clock.Now(), func(m *Metrics) prometheus.Counter { return m.endpointChanges })
			for _, obj := range states { // it may have belonged to another Service
				if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
					f.note(false, serviceOf(s))
				}
			}
		}),
		on(ranges, func(...any) { f.note(true) }),
		on(nodes, func(states ...any) {
			if n, ok := states[0].(*corev1.Node); ok && n.Name == f.options.NodeName {
				_, there, err := nodes.GetStore().GetByKey(n.Name)
				f.options.Health.see(n, there && err == nil)
				f.see(n)
			}
		}),
	)
	return synced, stop, err
}

// see notes relevant changes of the node; its heartbeats are not.
func (f *follower) see(n *corev1.Node) {
	now := self{zone: n.Labels[corev1.LabelTopologyZone]}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" {
				now.addresses = append(now.addresses, ip.Unmap())
			}
		}
	}
	if a := f.options.Address; a.IsValid() {
		now.addresses = append([]netip.Addr{a}, slices.DeleteFunc(now.addresses, func(o netip.Addr) bool { return o.Is4() == a.Is4() })...)
	}
	for _, text := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			now.here = append(now.here, p)
		}
	}
	f.mu.Lock()
	same := now.zone == f.self.zone && slices.Equal(now.addresses, f.self.addresses) && slices.Equal(now.here, f.self.here)
	f.self = now
	f.mu.Unlock()
	if !same {
		f.note(true)
	}
}

// loop writes all changes since the last transaction at once. It pauses at least as long as it wrote. A change does not wait for the pause
// after a write of all rules, which only delays the next such write.
func (f *follower) loop(ctx context.Context, s *syncer) error {
	o := f.options
	var sweep, again <-chan time.Time
	var failures backoff.Failures
	first := min(retryFirst, o.SyncPeriod)
	retry := first
	whole := o.Clock.NewTimer(wholeAfter)
	defer whole.Stop()
	var rested, restedWhole time.Time // the ends of the pauses
	alone := false                    // the other backend's rules were removed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sweep:
			sweep = nil
			err := s.sweep(ctx)
			if ctx.Err() != nil {
				return nil
			}
			s.report(&s.failed.sweep, o.Logger.Warn, "Could not remove some unused rules of Services, retrying with the next write", err)
			if err != nil {
				sweep = o.Clock.After(retryMost)
			}
			continue
		case <-whole.C():
			f.note(true)
			continue
		case <-again:
			again = nil
			f.note(false) // the table knows what failed
			continue
		case <-f.wake:
		}
		from := rested
		if f.whole() && from.Before(restedWhole) {
			from = restedWhole
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.Clock.After(max(gather, from.Sub(o.Clock.Now()))):
		}
		o.Health.begin()
		changed, all, me := f.take()
		s.self = me
		if all {
			whole.Reset(wholeAfter)
		}
		begin := o.Clock.Now()
		err := s.sync(ctx, changed, all)
		if ctx.Err() != nil {
			return nil
		}
		now := o.Clock.Now()
		took := now.Sub(begin)
		if rest := now.Add(min(took, time.Second)); all && err == nil {
			restedWhole = rest
		} else {
			rested = rest
		}
		if pause := begin.Add(o.MinSyncPeriod); pause.After(rested) {
			rested = pause
		}
		if err != nil {
			failures.Log(now, o.Logger.Error, "Could not write the rules of Services, retrying", "error", err, "again", retry)
			again, retry = o.Clock.After(retry), min(2*retry, o.SyncPeriod)
			continue
		}
		retry = first
		failures.Clear()
		if all {
			o.Logger.Debug("Wrote all rules of Services", "took", took)
		}
		if sweep == nil && s.unswept() {
			sweep = o.Clock.After(sweepAfter)
		}
		if o.Synced != nil {
			o.Synced()
		}
		if !alone { // only when our rules exist
			alone = true
			for _, other := range []netfilter.Backend{netfilter.NFTables, netfilter.IPTables} {
				if other == o.Backend {
					continue
				}
				if err := o.clear(ctx, other); err != nil && ctx.Err() == nil {
					o.Logger.Warn("Could not remove the service proxy's rules of another backend", "backend", other, "error", err)
				}
			}
		}
	}
}

// listed is the state in the informers.
type listed struct {
	informers.SharedInformerFactory
}

func (l listed) service(name types.NamespacedName) *corev1.Service {
	s, err := l.Core().V1().Services().Lister().Services(name.Namespace).Get(name.Name)
	if err != nil {
		return nil // it is gone
	}
	return s
}

func (l listed) slices(name types.NamespacedName) []*discoveryv1.EndpointSlice {
	found, err := l.Discovery().V1().EndpointSlices().Informer().GetIndexer().ByIndex(byService, name.String())
	if err != nil {
		panic("the proxy's informers were not prepared: " + err.Error())
	}
	out := make([]*discoveryv1.EndpointSlice, 0, len(found))
	for _, obj := range found {
		out = append(out, obj.(*discoveryv1.EndpointSlice))
	}
	return out
}

func (l listed) names() []types.NamespacedName {
	all := l.Core().V1().Services().Informer().GetStore().List()
	out := make([]types.NamespacedName, 0, len(all))
	for _, obj := range all {
		s := obj.(*corev1.Service)
		out = append(out, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
	}
	return out
}

func (l listed) ranges() []netip.Prefix {
	var out []netip.Prefix
	for _, obj := range l.Networking().V1().ServiceCIDRs().Informer().GetStore().List() {
		for _, text := range obj.(*networkingv1.ServiceCIDR).Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			// nft rejects overlapping ranges: the wider one stays.
			if err == nil && !slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Overlaps(p) }) {
				out = append(slices.DeleteFunc(out, p.Overlaps), p)
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// Remove deletes everything that the proxy ever wrote, with any backend.
func Remove(ctx context.Context) error {
	return errors.Join(clearBackend(ctx, netfilter.NFTables), clearBackend(ctx, netfilter.IPTables))
}

// clearBackend deletes everything that the proxy wrote with one backend. Without its programs there is nothing.
func clearBackend(ctx context.Context, b netfilter.Backend) error {
	if b == netfilter.IPTables {
		return netfilter.RemoveChains(ctx, isIPTablesChain)
	}
	return netfilter.RemoveTable(ctx, tableName)
}
