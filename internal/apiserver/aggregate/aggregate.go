// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package aggregate delegates group-versions to other API servers: those whose APIService names a service.
//
// An [Aggregator] holds all registrations (APIServices). The server's feed applies each change of one
// ([Aggregator.Apply]) before the write is answered. [Aggregator.Find] reports whether a path belongs to another
// server; it is one lookup in a map, and costs nothing without registrations. [Aggregator.ServeHTTP] forwards a request
// (proxy.go) in the name of its user: the front-proxy certificate authorizes the server to name users, and headers name
// the user (identity.go). The service and its endpoint slices determine the server's address (resolve.go).
//
// Each registration has a worker in [Aggregator.Run] that probes its server, and writes the condition Available (probe.go):
// when the registration, the service or its endpoints change, and every half minute. A server that hangs delays its own
// worker only. [Aggregator.Read] receives the result of discovery and OpenAPI, which becomes a condition of its own if a
// server that responds cannot be understood (reading.go).
//
// The code that merges discovery and OpenAPI of the servers reads [Aggregator.Services] and waits for [Aggregator.Changed].
// A [Service] is the state of one registration at one time and is immutable:
//
//	for {
//		changed := a.Changed() // before the list is read, so that nothing is missed
//		for _, s := range a.Services() {
//			client := &http.Client{Transport: s.As(aggregate.Discovery())}
//			// GET s.URL("/apis"): ends at a ready endpoint of the service, through the ledger
//		}
//		<-changed
//	}
package aggregate

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

var (
	registrations  = schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}
	services       = schema.GroupResource{Resource: "services"}
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// Kinds returns the kinds that an aggregator follows.
func Kinds() []schema.GroupResource {
	return []schema.GroupResource{registrations, services, endpointSlices}
}

// Backend is the part of the API that an aggregator uses.
type Backend interface {
	resource.Backend
	UpdateStatus(ctx context.Context, r schema.GroupResource, namespace, name, manager string, change func(obj resource.Object)) error
}

// Options of [New]. Backend and Ledger are required.
type Options struct {
	Backend func() Backend
	Ledger  *extension.Ledger
	// Certificate returns the front-proxy client's certificate, at each handshake. Nil: the client shows none.
	Certificate func() *tls.Certificate
	// ClusterIPs makes the aggregator call services at their cluster IP, as kube-apiserver does without
	// --enable-aggregator-routing.
	ClusterIPs bool
	// Form is how registrations are stored; nil: as APIServices.
	Form *Form
	// Beside is an aggregator whose rotations of the certificate this one makes too, and whose channel of changes this one closes
	// too. Nil: none.
	Beside *Aggregator
	// Dial connects to the servers; nil: the default dialer.
	Dial egress.Dial
	// ForwardRedirects forwards redirects to the client. By default servers may not redirect.
	ForwardRedirects bool
	// RequestTimeout is the maximum time of a request that is not long-running; 0: a minute.
	RequestTimeout time.Duration
	// Most is the maximum number of concurrent short requests to one server; 0: 400. Further requests get a 429.
	Most  int
	Log   *slog.Logger
	Clock clock.WithTicker
}

// Aggregator has the registrations of one server. It is safe for concurrent use.
type Aggregator struct {
	o       Options
	paths   atomic.Pointer[map[string]*Service] // by GROUP/VERSION ("" is the legacy group), or by name. Nil: no registrations
	metrics *metrics
	buffers buffers

	mu      sync.Mutex
	entries map[string]*entry
	at      map[reference][]*entry // entries by their service
	list    []*Service             // sorted; nil: to be made again
	changed chan struct{}
	locals  map[string]bool // registrations without a service that lack the condition Available
	due     chan struct{}   // holds one when there are such
	start   func(*entry)    // starts an entry's worker; nil: not yet
	workers sync.WaitGroup
	rotates []*Aggregator // those beside it; not changed once requests are served
}

// entry is the state that lives as long as a registration.
type entry struct {
	service *Service
	way     *way
	target  atomic.Pointer[target]
	epoch   atomic.Int64 // of the service and its endpoints: a target with another epoch must be resolved again
	reading atomic.Pointer[reading]
	gate    chan struct{}      // holds a token for each request in flight
	wake    chan struct{}      // holds a token when the server must be checked
	stop    context.CancelFunc // nil: it has no worker yet
}

// New makes an aggregator without registrations.
func New(o Options) *Aggregator {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.Form = cmp.Or(o.Form, apiServices)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, time.Minute)
	o.Most = cmp.Or(o.Most, 400)
	a := &Aggregator{o: o, entries: map[string]*entry{}, at: map[reference][]*entry{}, changed: make(chan struct{}),
		locals: map[string]bool{}, due: make(chan struct{}, 1), metrics: newMetrics()}
	if b := o.Beside; b != nil {
		b.rotates = append(b.rotates, a)
	}
	return a
}

// Load replaces all registrations with the stored ones. The addresses of their servers are resolved again.
func (a *Aggregator) Load(ctx context.Context, stored feed.Lister) error {
	all, err := stored.List(ctx, a.o.Form.Resource, "")
	if err != nil {
		return err
	}
	names := make(map[string]bool, len(all))
	for _, obj := range all {
		names[obj.GetName()] = true
		a.registered(obj.GetName(), obj)
	}
	snapshot, _ := stored.(*feed.Snapshot)
	for _, name := range a.names() {
		if !names[name] && !snapshot.Has(a.o.Form.Resource, "", name) {
			a.registered(name, nil)
		}
	}
	a.moved("", "")
	return nil
}

// names returns the names of all known registrations.
func (a *Aggregator) names() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.entries))
}

// Apply applies a change of a registration, of a service, or of its endpoint slices.
func (a *Aggregator) Apply(_ context.Context, c *feed.Change) error {
	switch c.Resource {
	case a.o.Form.Resource:
		a.registered(c.Name, c.Object)
	case services:
		a.moved(c.Namespace, c.Name)
	case endpointSlices:
		if c.Object == nil {
			a.moved(c.Namespace, "")
		} else if service := c.Object.GetLabels()[discoveryv1.LabelServiceName]; service != "" {
			a.moved(c.Namespace, service)
		}
	}
	return nil
}

// registered sets the registration of a name; a nil object removes it.
func (a *Aggregator) registered(name string, obj resource.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.o.Form.registration(obj)
	old := a.entries[name]
	if r == nil || r.Spec.Service == nil || r.Spec.Group == apiregistrationv1.GroupName {
		if old != nil {
			a.forget(old)
			a.publish()
		}
		if r != nil {
			a.metrics.says(name, true)
			a.localLater(r)
		} else {
			a.metrics.forget(name)
		}
		return
	}
	s := a.describe(r)
	a.metrics.says(name, s.Available)
	if old != nil && old.service.at == s.at {
		was := old.service
		if was.says(s) && old.way.fits(r) {
			return
		}
		a.adopt(old, s, r)
		a.publish()
		if was.way != s.way || was.UID != s.UID {
			old.poke()
		}
		return
	}
	if old != nil {
		a.forget(old)
	}
	e := &entry{gate: make(chan struct{}, a.o.Most), wake: make(chan struct{}, 1)}
	a.adopt(e, s, r)
	a.entries[name] = e
	a.at[s.at.reference] = append(a.at[s.at.reference], e)
	a.o.Ledger.Register(s.ref(), a.o.Form.Kind+"/"+name)
	a.publish()
	a.work(e)
}

// adopt makes s the state of an entry, and keeps the entry's connections if they still fit. The caller holds mu.
func (a *Aggregator) adopt(e *entry, s *Service, r *apiregistrationv1.APIService) {
	s.entry, s.aggregator = e, a
	if e.way == nil || !e.way.fits(r) {
		if e.way != nil {
			e.way.close()
		}
		e.way = a.open(wayTo(r))
	}
	s.way = e.way
	e.service = s
}

// forget removes an entry and ends its worker. The caller holds mu.
func (a *Aggregator) forget(e *entry) {
	s := e.service
	delete(a.entries, s.Name)
	at := slices.DeleteFunc(a.at[s.at.reference], func(o *entry) bool { return o == e })
	if a.at[s.at.reference] = at; len(at) == 0 {
		delete(a.at, s.at.reference)
	}
	if e.stop != nil {
		e.stop()
	}
	e.way.close()
	a.o.Ledger.Unregister(s.ref())
}

// publish makes the current entries visible to requests. The caller holds mu.
func (a *Aggregator) publish() {
	a.list = nil
	var paths *map[string]*Service
	if len(a.entries) > 0 {
		m := make(map[string]*Service, len(a.entries))
		for _, e := range a.entries {
			m[e.service.key()] = e.service
		}
		paths = &m
	}
	a.paths.Store(paths)
	close(a.changed)
	a.changed = make(chan struct{})
	if b := a.o.Beside; b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

// Services returns the registrations of other servers, sorted by name. The slice is shared.
func (a *Aggregator) Services() []*Service {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.list == nil {
		a.list = make([]*Service, 0, len(a.entries))
		for _, e := range a.entries {
			a.list = append(a.list, e.service)
		}
		slices.SortFunc(a.list, func(x, y *Service) int { return cmp.Compare(x.Name, y.Name) })
	}
	return a.list
}

// Changed returns a channel that is closed when the result of [Aggregator.Services] changes.
func (a *Aggregator) Changed() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.changed
}

// Find returns the registration that a path belongs to; nil: this server serves the path. In a form that is found by name, the path is a
// registration's name.
func (a *Aggregator) Find(path string) *Service {
	paths := a.paths.Load()
	if paths == nil {
		return nil
	}
	if a.o.Form.ByName {
		return (*paths)[path]
	}
	if rest, ok := strings.CutPrefix(path, "/apis/"); ok {
		i := strings.IndexByte(rest, '/')
		if i < 0 {
			return nil
		}
		if j := strings.IndexByte(rest[i+1:], '/'); j >= 0 {
			rest = rest[:i+1+j]
		}
		return (*paths)[rest]
	}
	if path == "/api" || strings.HasPrefix(path, "/api/") {
		return (*paths)[""]
	}
	return nil
}

// moved makes the aggregator resolve the servers behind a service again: without a name those behind all services of
// the namespace, and without a namespace all servers.
func (a *Aggregator) moved(namespace, name string) {
	if a.paths.Load() == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	moved := false
	for at, entries := range a.at {
		if namespace != "" && at.namespace != namespace || name != "" && at.name != name {
			continue
		}
		for _, e := range entries {
			e.epoch.Add(1)
			e.poke()
			moved = true
		}
	}
	if moved {
		a.publish() // the server at the new address may serve other resources
	}
}

// Rotated makes further requests use new connections, after a change of the front proxy's certificate.
func (a *Aggregator) Rotated() {
	for _, b := range a.rotates {
		b.Rotated()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.entries {
		s := *e.service
		e.way.close()
		e.way = a.open(&way{name: s.way.name, insecure: s.way.insecure, authority: s.way.authority})
		s.way, e.service = e.way, &s
		e.poke()
	}
	a.publish()
}

func (e *entry) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Run checks whether the servers respond, until ctx ends.
func (a *Aggregator) Run(ctx context.Context) {
	a.mu.Lock()
	a.start = func(e *entry) {
		ctx, stop := context.WithCancel(ctx)
		e.stop = stop
		a.workers.Go(func() { a.keep(ctx, e) })
	}
	for _, e := range a.entries {
		a.work(e)
	}
	a.mu.Unlock()
	a.keepLocals(ctx)
	a.mu.Lock()
	a.start = nil
	for _, e := range a.entries {
		e.way.close()
	}
	a.mu.Unlock()
	a.workers.Wait()
}

// work starts the worker of an entry once the aggregator runs. The caller holds mu.
func (a *Aggregator) work(e *entry) {
	if a.start != nil && e.stop == nil {
		a.start(e)
	}
}
