// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package feed keeps what the API server makes of stored objects true to the store: the index of roles, the served custom
// resource definitions, the configurations of webhooks and policies, and all else that a [Follower] holds.
//
// A [Feed] reads one watch of the whole store and hands each follower the changes of its resources in the order of their
// revisions, decoded once. Each follower has a goroutine and a queue of its own, so that a slow one delays no other. A
// request that has written an object of a followed resource calls [Feed.Wait] before it is answered, so that the change is
// in force for the next request. The feed learns of a change from the store alone: it does not matter which client or
// process wrote it, or whether the client still waits.
//
// Worked example: the store is at revision 40 when the server starts. Load gives every follower a snapshot of revision 40,
// and the watch begins after it. A client creates a ClusterRole at revision 41. The feed gets the event, the follower rbac
// applies it and is at 41; the client's request, which has waited for that, is answered. Meanwhile a Lease was written at
// revision 42: there is no follower of leases, so its request did not wait.
//
// A change that a follower cannot apply is tried again, with back-off, until it succeeds or a newer change of the same object
// takes its place; the changes of other objects go on. Meanwhile [Feed.Check] names the object. A follower that has fallen
// behind too far, or whose changes the store has compacted, loads a new snapshot.
package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

const (
	// maxQueued is how many changes wait for one follower. One with more loads a snapshot instead.
	maxQueued = 65_536
	// firstRetry and lastRetry bound the back-off of a change that could not be applied, and of a watch that broke.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
)

// Source is the part of a store that a feed reads.
type Source interface {
	Range(ctx context.Context, r store.Range) (store.Page, error)
	Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error)
	Revision() int64
}

// Lister lists stored objects, in the order of their namespaces and names. They are shared and read-only. A [Snapshot] is one.
type Lister interface {
	// List returns all objects of a resource in a namespace; "" is all namespaces. A resource that the server does not have has none.
	List(ctx context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error)
}

// Follower holds something that is made of stored objects. Its functions are called one at a time.
type Follower struct {
	// Name stands in metrics and, after "feed/", in /readyz.
	Name string
	// Resources are those whose changes it is given.
	Resources []schema.GroupResource
	// Namespace is the only one of whose namespaced objects the follower is given changes; empty: all namespaces.
	Namespace string
	// Load replaces the follower's state by that of a snapshot. It is called before the first Apply, and again when the
	// follower has missed changes.
	Load func(ctx context.Context, s *Snapshot) error
	// Apply takes note of one change. It may write to the store with the context that it is given: such writes wait for no
	// follower.
	Apply func(ctx context.Context, c *Change) error
	// Wanted is closed when the follower's state is first needed. The feed loads the follower then; until then it gives the
	// follower no changes, and no request waits for it. Nil: it is needed from the start.
	Wanted <-chan struct{}
	// Unreadable is called after Load and Apply when the objects have changed that Load could not read, because they cannot be decoded or
	// the follower cannot make sense of them ([Snapshot.Fail]): the follower knows no earlier state of them either. An object leaves
	// the list when it is applied or deleted. Nil: the follower does without them.
	Unreadable func(objects []Key)
	// Background means that no request depends on the follower's state: writes of its resources do not wait for it.
	Background bool
}

// Change is the change of one object.
type Change struct {
	Resource        schema.GroupResource
	Namespace, Name string
	Revision        int64
	// Object is shared and read-only; nil: the object is gone.
	Object resource.Object
}

// changeAt is the change of the object that is stored under a key of a kind, without the object.
func changeAt(k *watchcache.Kind, key string, revision int64) *Change {
	c := &Change{Resource: k.GroupResource(), Revision: revision, Name: key[len(k.Root):]}
	if k.Namespaced {
		c.Namespace, c.Name, _ = strings.Cut(c.Name, "/")
	}
	return c
}

func (c *Change) key() Key { return Key{c.Resource, c.Namespace, c.Name} }

// Key names an object.
type Key struct {
	Resource        schema.GroupResource
	Namespace, Name string
}

func (k Key) String() string {
	if k.Namespace == "" {
		return fmt.Sprintf("%s %q", k.Resource, k.Name)
	}
	return fmt.Sprintf("%s %q", k.Resource, k.Namespace+"/"+k.Name)
}

// Options of [New].
type Options struct {
	Source Source
	// Kind returns the kind of a resource, nil if the server has none.
	Kind func(schema.GroupResource) *watchcache.Kind
	Log  *slog.Logger
}

// Feed hands the store's changes to followers.
type Feed struct {
	opts      Options
	followers []*follower
	by        map[schema.GroupResource][]*follower
	roots     []root // of the followed resources, in the order of their prefixes; set by Load

	started atomic.Bool
	ended   chan struct{}

	took *prometheus.HistogramVec
}

// root is where the objects of a resource are stored.
type root struct {
	prefix   string
	resource schema.GroupResource
}

// New returns a feed of followers that do not know anything yet.
func New(o Options, followers ...Follower) *Feed {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	f := &Feed{opts: o, by: map[schema.GroupResource][]*follower{}, ended: make(chan struct{}), took: newTook()}
	for _, of := range followers {
		each := &follower{Follower: of, feed: f, woken: make(chan struct{}, 1), failing: map[Key]*failure{}, idle: of.Wanted != nil}
		each.took = f.took.WithLabelValues(of.Name)
		f.followers = append(f.followers, each)
		for _, r := range of.Resources {
			f.by[r] = append(f.by[r], each)
		}
	}
	return f
}

// Start loads every follower, in their order, from one snapshot, and follows the store from there on until ctx ends. It returns
// when all followers are loaded; its error names the one that could not be. Resources that the server does not have now are not
// followed. The feed's goroutines are added to group.
func (f *Feed) Start(ctx context.Context, group *sync.WaitGroup) error {
	for r := range f.by {
		if k := f.opts.Kind(r); k != nil {
			f.roots = append(f.roots, root{k.Root, r})
		}
	}
	slices.SortFunc(f.roots, func(a, b root) int { return strings.Compare(a.prefix, b.prefix) })
	revision := f.opts.Source.Revision()
	w, err := f.opts.Source.Watch(ctx, keyspace, revision)
	if err != nil {
		return fmt.Errorf("follow the store: %w", err)
	}
	for _, each := range f.followers {
		if each.idle {
			continue
		}
		if err := each.load(ctx, revision); err != nil {
			w.Close()
			return fmt.Errorf("load %s: %w", each.Name, err)
		}
	}
	f.started.Store(true)
	for _, each := range f.followers {
		group.Go(func() { each.run(ctx) })
	}
	group.Go(func() { f.run(ctx, w, revision) })
	return nil
}

// keyspace is the prefix of all objects' keys.
const keyspace = "/registry/"

// run reads the watch until ctx ends or the store is closed.
func (f *Feed) run(ctx context.Context, w store.Watcher, seen int64) {
	defer close(f.ended)
	for w != nil {
		err := f.read(ctx, w, &seen)
		w.Close()
		w = f.reopen(ctx, err, &seen)
	}
}

// reopen begins the watch again after an error. It returns nil when the feed is to end.
func (f *Feed) reopen(ctx context.Context, err error, seen *int64) store.Watcher {
	missed := false
	for wait := time.Duration(0); ctx.Err() == nil && !errors.Is(err, store.ErrClosed); {
		f.opts.Log.ErrorContext(ctx, "Could not watch the store, retrying", "revision", *seen, "error", err)
		if errors.Is(err, store.ErrCompacted) {
			*seen, missed = f.opts.Source.Revision(), true
		}
		wait = pause(ctx, wait)
		var w store.Watcher
		if w, err = f.opts.Source.Watch(ctx, keyspace, *seen); err != nil {
			continue
		}
		if missed {
			for _, each := range f.followers {
				each.reload()
			}
		}
		return w
	}
	return nil
}

// pause waits for longer each time, and returns for how long it has waited.
func pause(ctx context.Context, last time.Duration) time.Duration {
	next := min(max(2*last, firstRetry), lastRetry)
	t := time.NewTimer(next)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
	return next
}

// read hands out what a watch tells, until it ends. seen is the revision up to which all was handed out.
func (f *Feed) read(ctx context.Context, w store.Watcher, seen *int64) error {
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for i := range batch.Events {
			f.hand(&batch.Events[i])
		}
		for _, each := range f.followers {
			each.upTo(batch.Revision)
		}
		*seen = batch.Revision
	}
}

// hand gives a change to the followers of its resource.
func (f *Feed) hand(e *store.Event) {
	i, exact := slices.BinarySearchFunc(f.roots, e.Key, func(r root, key string) int { return strings.Compare(r.prefix, key) })
	if !exact {
		i--
	}
	if i < 0 || !strings.HasPrefix(e.Key, f.roots[i].prefix) {
		return
	}
	r := f.roots[i].resource
	k := f.opts.Kind(r)
	if k == nil {
		return
	}
	c := changeAt(k, e.Key, e.Revision)
	var undecoded error
	decoded := e.Record == nil
	for _, each := range f.by[r] {
		if !each.concerned(c) {
			continue
		}
		if !decoded {
			read := k.Cached
			if e.Previous == nil {
				read = k.Created
			}
			cached, err := read(e.Record)
			if err != nil {
				undecoded = err
			} else {
				c.Object = cached.Hub
			}
			decoded = true
		}
		each.queue(queued{c, e.Record, undecoded})
	}
}

// Wait returns when all followers of a resource, save those in the background, have applied its changes up to and with a revision, or ctx
// ends. A change that a follower could not apply counts as applied: it is tried again later. Wait returns at once within [Follower.Apply]
// and [Follower.Load], before the feed was started, and after it has ended.
func (f *Feed) Wait(ctx context.Context, r schema.GroupResource, revision int64) {
	if !f.started.Load() || ctx.Value(applying{}) != nil {
		return
	}
	for _, each := range f.by[r] {
		if each.Background {
			continue
		}
		select {
		case <-each.at(revision):
		case <-ctx.Done():
			return
		case <-f.ended:
			return
		}
	}
}

// applying marks the contexts of followers' own work.
type applying struct{}

// Check returns what a follower, by its name, could not apply.
func (f *Feed) Check(name string) error {
	for _, each := range f.followers {
		if each.Name == name {
			return each.check()
		}
	}
	return fmt.Errorf("there is no follower %q", name)
}

// Names are those of all followers, in their order.
func (f *Feed) Names() []string {
	names := make([]string, len(f.followers))
	for i, each := range f.followers {
		names[i] = each.Name
	}
	return names
}
