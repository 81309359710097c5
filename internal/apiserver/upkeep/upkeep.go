// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package upkeep does what an API server does, beside answering, to objects that are its own or that it has something to say
// of: flow schemas learn whether their priority level exists (flows.go), definitions are registered (registrations.go), objects
// of the start that are changed or deleted come back.
//
// A [Keeper] follows the store, and works by itself in [Keeper.Run]: nobody waits for it, and a commit costs no more
// than a look into a map. What it finds out follows from the store alone, so that a restart loses nothing.
package upkeep

import (
	"context"
	"log/slog"
	"sync"
	"time"

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

// Kinds are those that a keeper follows.
func Kinds() []schema.GroupResource {
	return []schema.GroupResource{flowSchemas, priorityLevels, registrations, definitions, ranges, configMaps}
}

// repairAfter is how long an object of the start stays as somebody made it, as with upstream.
const repairAfter = time.Minute

// Backend is what a keeper needs of the API.
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

// Keeper is one server's.
type Keeper struct {
	o Options

	mu     sync.Mutex
	todo   map[key]bool
	order  []key
	wake   chan struct{}                             // holds one when there is something to do
	known  map[string]map[string]schema.GroupVersion // definition → the registrations that its served versions want
	wants  map[string]int                            // by how many definitions a registration is wanted
	repair func(context.Context) error               // nil: nothing is repaired
	due    bool                                      // a repair is waited for
	kept   map[string]kept                           // config maps of kube-system, by name
}

// kept is a config map that the server sees to.
type kept struct {
	after time.Duration // how long somebody's change is left alone
	sync  func(context.Context) (time.Duration, error)
}

// key is a piece of work: a flow schema by name, the registration that a definition wants or those of all
// definitions, or the repair.
type key struct {
	what schema.GroupResource
	name string
}

// New makes a keeper.
func New(o Options) *Keeper {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Keeper{o: o, todo: map[key]bool{}, wake: make(chan struct{}, 1), known: map[string]map[string]schema.GroupVersion{}, wants: map[string]int{}, kept: map[string]kept{}}
}

// Keep has sync see to a config map of kube-system: when it was deleted, some time after it was changed, and when sync says
// that it is to be called again (0: not). It is called before Run.
func (k *Keeper) Keep(name string, after time.Duration, sync func(context.Context) (again time.Duration, err error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.kept[name] = kept{after, sync}
	k.add(key{configMaps, name})
}

// Look has a config map seen to that [Keeper.Keep] named.
func (k *Keeper) Look(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.add(key{configMaps, name})
}

func (k *Keeper) lookAfter(name string, d time.Duration) {
	k.o.Clock.AfterFunc(d, func() { k.Look(name) })
}

// Repair tells how objects of the start are put right. It is called before Run.
func (k *Keeper) Repair(f func(context.Context) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.repair = f
}

// Apply applies a change of an object of one of [Kinds].
func (k *Keeper) Apply(_ context.Context, c *feed.Change) error {
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

// Load learns which registrations the stored definitions want, and has everything else looked at when the keeper gets to it.
func (k *Keeper) Load(ctx context.Context, stored feed.Lister) error {
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
	for name := range k.kept {
		k.add(key{configMaps, name})
	}
	k.repairLater()
	return nil
}

func (k *Keeper) repairLater() {
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

// add wants the lock.
func (k *Keeper) add(w key) {
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
func (k *Keeper) Run(ctx context.Context, b Backend) {
	k.mu.Lock()
	k.add(key{what: definitions})
	k.mu.Unlock()
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
			if err := k.one(ctx, b, w); err != nil && ctx.Err() == nil {
				k.o.Log.WarnContext(ctx, "Could not reconcile an object", "resource", w.what, "name", w.name, "error", err)
			}
		}
	}
}

func (k *Keeper) next() (key, bool) {
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

func (k *Keeper) one(ctx context.Context, b Backend, w key) error {
	switch w.what {
	case flowSchemas:
		return k.flowSchema(ctx, b, w.name)
	case priorityLevels:
		return k.priorityLevel(ctx, b, w.name)
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

func (k *Keeper) configMap(ctx context.Context, name string) error {
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

func (k *Keeper) now() metav1.Time { return metav1.NewTime(k.o.Clock.Now()).Rfc3339Copy() }
