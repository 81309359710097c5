// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package reconciler reconciles objects that the API server itself owns or whose status it sets: it sets the condition Dangling of flow
// schemas (flows.go), registers the versions of CustomResourceDefinitions as APIServices (registrations.go), publishes config maps, and
// restores bootstrap objects that were changed or deleted.
//
// A [Reconciler] is a follower of the store and works in [Reconciler.Run]: no request waits for it, and a commit costs one lookup in a map.
// Its state is derived from the store alone, so that a restart loses nothing.
package reconciler

import (
	"context"
	"log/slog"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

var (
	flowSchemas    = schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}
	priorityLevels = schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}
	registrations  = schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}
	definitions    = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	ranges         = schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
	configMaps     = schema.GroupResource{Resource: "configmaps"}
)

// Kinds are the resources that a Reconciler follows.
func Kinds() []schema.GroupResource {
	return []schema.GroupResource{flowSchemas, priorityLevels, registrations, definitions, ranges, configMaps}
}

// firstRetry is the time after which an object that could not be reconciled is tried again. Each further failure doubles it, up to
// repairAfter.
const firstRetry = time.Second

// repairAfter is the time after which a changed bootstrap object is restored, as upstream's.
const repairAfter = time.Minute

// Backend is the part of the API that a Reconciler uses.
type Backend interface {
	resource.Backend
	UpdateStatus(ctx context.Context, r schema.GroupResource, namespace, name, manager string, change func(obj resource.Object)) error
	ApplyStatus(ctx context.Context, r schema.GroupResource, namespace, name, manager string, status map[string]any) error
}

// Options of [New].
type Options struct {
	Log   *slog.Logger
	Clock clock.WithDelayedExecution
}

// Reconciler reconciles the objects of one server.
type Reconciler struct {
	o Options

	mu     sync.Mutex
	todo   map[key]bool
	order  []key
	wake   chan struct{}                             // holds one when there is something to do
	known  map[string]map[string]schema.GroupVersion // definition → the registrations that its served versions want
	wants  map[string]int                            // by how many definitions a registration is wanted
	repair func(context.Context) error               // nil: bootstrap objects are not restored
	due    bool                                      // a repair is scheduled
	kept   map[string]kept                           // config maps of kube-system, by name
}

// kept is a config map that the server publishes.
type kept struct {
	after time.Duration // the delay after a change by others
	sync  func(context.Context) (time.Duration, error)
}

// key is a piece of work: a flow schema by name or all of them, the registration that a definition wants or those of all
// definitions, or the repair.
type key struct {
	what schema.GroupResource
	name string
}

// New makes a Reconciler.
func New(o Options) *Reconciler {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Reconciler{o: o, todo: map[key]bool{}, wake: make(chan struct{}, 1), known: map[string]map[string]schema.GroupVersion{},
		wants: map[string]int{}, kept: map[string]kept{}}
}

// Keep calls sync for a config map of kube-system: when it was deleted, some time after it was changed, and after the time that sync
// returns (0: not). It is called before Run.
func (k *Reconciler) Keep(name string, after time.Duration, sync func(context.Context) (again time.Duration, err error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[name] = kept{after, sync}
	k.add(key{configMaps, name})
}

// Look calls the sync of a config map that [Reconciler.Keep] named.
func (k *Reconciler) Look(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.add(key{configMaps, name})
}

func (k *Reconciler) lookAfter(name string, d time.Duration) {
	k.addAfter(key{configMaps, name}, d)
}

// Repair sets the function that restores bootstrap objects. It is called before Run.
func (k *Reconciler) Repair(f func(context.Context) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.repair = f
}

// Apply applies a change of an object of one of [Kinds].
func (k *Reconciler) Apply(_ context.Context, c *feed.Change) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch c.Resource {
	case flowSchemas:
		if c.Object != nil {
			k.add(key{flowSchemas, c.Name})
		}
		k.repairLater()
	case priorityLevels:
		k.add(key{priorityLevels, c.Name})
		k.repairLater()
	case ranges:
		if c.Object == nil {
			k.repairLater()
		}
	case configMaps:
		if kept, ok := k.kept[c.Name]; ok && c.Namespace == metav1.NamespaceSystem {
			if c.Object == nil || kept.after == 0 {
				k.add(key{configMaps, c.Name})
			} else {
				k.lookAfter(c.Name, kept.after)
			}
		}
	case definitions:
		k.defined(c.Name, c.Object)
	case registrations:
		k.registered(c.Name, c.Object)
	}
	return nil
}

// Load computes the registrations of the stored definitions, and enqueues everything else.
func (k *Reconciler) Load(ctx context.Context, stored feed.Lister) error {
	all, err := stored.List(ctx, definitions, "")
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.known)
	clear(k.wants)
	for _, obj := range all {
		want := registrationsOf(obj)
		k.known[obj.GetName()] = want
		for name := range want {
			k.wants[name]++
		}
	}
	k.add(key{what: definitions})
	k.add(key{what: flowSchemas})
	for name := range k.kept {
		k.add(key{configMaps, name})
	}
	k.repairLater()
	return nil
}

func (k *Reconciler) repairLater() {
	if k.repair == nil || k.due {
		return
	}
	k.due = true
	k.o.Clock.AfterFunc(repairAfter, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.due = false
		k.add(key{name: "repair"})
	})
}

// addAfter enqueues a key after a time.
func (k *Reconciler) addAfter(w key, d time.Duration) {
	k.o.Clock.AfterFunc(d, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.add(w)
	})
}

// add enqueues a key. The caller holds the lock.
func (k *Reconciler) add(w key) {
	if k.todo[w] {
		return
	}
	k.todo[w] = true
	k.order = append(k.order, w)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx ends.
func (k *Reconciler) Run(ctx context.Context, b Backend) {
	k.mu.Lock()
	k.add(key{what: definitions})
	k.mu.Unlock()
	delays := map[key]time.Duration{} // of what failed
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		}
		for ctx.Err() == nil {
			w, ok := k.next()
			if !ok {
				break
			}
			err := k.one(ctx, b, w)
			if err == nil || ctx.Err() != nil {
				delete(delays, w)
				continue
			}
			k.o.Log.WarnContext(ctx, "Could not reconcile an object, retrying", "resource", w.what, "name", w.name, "error", err)
			if w.what != configMaps { // these set their own time
				delays[w] = min(max(2*delays[w], firstRetry), repairAfter)
				k.addAfter(w, delays[w])
			}
		}
	}
}

func (k *Reconciler) next() (key, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.order) == 0 {
		return key{}, false
	}
	w := k.order[0]
	k.order = k.order[1:]
	delete(k.todo, w)
	return w, true
}

func (k *Reconciler) one(ctx context.Context, b Backend, w key) error {
	switch w.what {
	case flowSchemas:
		if w.name == "" {
			return k.enqueueFlowSchemas(ctx, b, func(*flowcontrolv1.FlowSchema) bool { return true })
		}
		return k.flowSchema(ctx, b, w.name)
	case priorityLevels:
		return k.enqueueFlowSchemas(ctx, b, func(s *flowcontrolv1.FlowSchema) bool { return s.Spec.PriorityLevelConfiguration.Name == w.name })
	case definitions:
		if w.name != "" {
			return k.register(ctx, b, w.name)
		}
		return k.definitions(ctx, b)
	case configMaps:
		return k.configMap(ctx, w.name)
	}
	k.mu.Lock()
	repair := k.repair
	k.mu.Unlock()
	if repair == nil {
		return nil
	}
	return repair(ctx)
}

func (k *Reconciler) configMap(ctx context.Context, name string) error {
	k.mu.Lock()
	c, ok := k.kept[name]
	k.mu.Unlock()
	if !ok {
		return nil
	}
	again, err := c.sync(ctx)
	if err != nil && again == 0 {
		again = repairAfter
	}
	if again > 0 {
		k.lookAfter(name, again)
	}
	return err
}

func (k *Reconciler) now() metav1.Time { return metav1.NewTime(k.o.Clock.Now()).Rfc3339Copy() }
