// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/metadatareflector"
)

// patience is how long the first judgement waits for lists; a resource that cannot be listed must not block the others. As long a group may
// not be discovered before that is a warning: the server of a new APIService has yet to answer.
const patience = 30 * time.Second

// A group whose discovery fails is discovered again after a pause, which doubles between these bounds.
const (
	shortestPause = 250 * time.Millisecond
	longestPause  = 30 * time.Second // as upstream's
)

// errUndiscovered is the class of errors of discovery.
var errUndiscovered = errors.New("discover resources")

// ignored reports whether a resource is left out: events own no objects and are numerous.
func ignored(gr schema.GroupResource) bool {
	return gr.Resource == "events" && (gr.Group == "" || gr.Group == "events.k8s.io")
}

// everything is the key for a change of unknown group.
const everything = ""

// monitors watch every resource that supports it. They read discovery at the start and whenever a CRD or an aggregated API changes.
type monitors struct {
	d        *controllers.Deps
	clock    clock.WithTicker
	log      *slog.Logger
	observed func(*object)
	removed  func(types.UID)
	changes  *controllers.Queue[string]
	failing  map[string]failing // groups whose discovery fails; of the one that refreshes

	mu      sync.Mutex
	running map[schema.GroupVersionResource]*monitor
}

// failing is a discovery that fails.
type failing struct {
	since  time.Time
	pause  time.Duration // before the next one
	warned bool
}

type monitor struct {
	stop    context.CancelFunc
	synced  <-chan struct{}
	stopped <-chan struct{} // nil: the monitor never stops
}

func newMonitors(d *controllers.Deps, observed func(*object), removed func(types.UID), defined func(group string)) (*monitors, error) {
	m := &monitors{
		d: d, clock: d.Clock, log: d.Logger, observed: observed, removed: removed,
		changes: controllers.NewQueue[string](d, "garbage-collector-discovery", 1),
		failing: map[string]failing{}, running: map[schema.GroupVersionResource]*monitor{},
	}
	// A definition's name is RESOURCE.GROUP and a registration's VERSION.GROUP: both end with the group to refresh.
	changed := func(o metav1.Object) {
		if _, group, ok := strings.Cut(o.GetName(), "."); ok && group != "" {
			m.changes.Add(group)
		}
	}
	return m, errors.Join(
		d.SubscribeLate(d.MetadataInformers.ForResource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
			Resource: "customresourcedefinitions"}).Informer(), func(o metav1.Object) {
			if _, group, ok := strings.Cut(o.GetName(), "."); ok {
				defined(group)
			}
			changed(o)
		}),
		d.SubscribeLate(d.MetadataInformers.ForResource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1",
			Resource: "apiservices"}).Informer(), changed),
	)
}

// Run keeps the monitors up to date until ctx ends, and runs judge after the first lists.
func (m *monitors) Run(ctx context.Context, judge func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	refresh := func(ctx context.Context, of string) error {
		pause, err := m.settle(ctx, of, m.refresh(ctx, group, of))
		if pause > 0 {
			m.changes.AddAfter(of, pause)
		}
		return err
	}
	first := refresh(ctx, everything)
	if first != nil {
		m.changes.AddRateLimited(everything)
	}
	group.Go(func() error { return m.changes.Run(ctx, refresh) })
	group.Go(func() error {
		m.await(ctx)
		return judge(ctx)
	})
	return group.Wait()
}

// settle takes the result of the refresh of a group. If its discovery failed, it has to be refreshed again after the pause: another event
// may never come. A failure is a warning once it has lasted, and then at each further try. Other errors are returned.
func (m *monitors) settle(ctx context.Context, of string, err error) (pause time.Duration, other error) {
	f, failed := m.failing[of]
	group := cmp.Or(of, "all")
	if !errors.Is(err, errUndiscovered) {
		delete(m.failing, of)
		if f.warned && err == nil {
			m.log.InfoContext(ctx, "The resources of an API group were discovered again", "group", group)
		}
		return 0, err
	}
	if now := m.clock.Now(); !failed {
		f = failing{since: now, pause: shortestPause}
	} else {
		f.pause = min(2*f.pause, longestPause)
		f.warned = now.Sub(f.since) >= patience
	}
	level := slog.LevelDebug
	if f.warned {
		level = slog.LevelWarn
	}
	m.log.Log(ctx, level, "Could not discover the resources of an API group, retrying", "group", group, "since", f.since, "error", err)
	m.failing[of] = f
	return f.pause, nil
}

// await waits for the first lists of all monitors, up to patience.
func (m *monitors) await(ctx context.Context) {
	timer := m.clock.NewTimer(patience)
	defer timer.Stop()
	m.mu.Lock()
	waits := slices.Collect(maps.Values(m.running))
	m.mu.Unlock()
	for _, w := range waits {
		select {
		case <-w.synced:
		case <-w.stopped: // the resource is not served any more
		case <-timer.C():
			m.log.Warn("Some resources could not be listed, starting garbage collection without them")
			return
		case <-ctx.Done():
			return
		}
	}
}

type resource struct {
	kind       string
	namespaced bool
}

// discover returns the resources to monitor, of one group or of all. broken are the groups whose discovery failed.
func (m *monitors) discover(ctx context.Context, of string) (found map[schema.GroupVersionResource]resource,
	broken map[schema.GroupVersion]error, err error) {
	var lists []*metav1.APIResourceList
	if of == everything {
		lists, err = m.d.Discovery.ServerPreferredResources()
	} else {
		lists, err = preferred(ctx, m.d.Discovery, of)
	}
	var partial *discovery.ErrGroupDiscoveryFailed
	if errors.As(err, &partial) {
		broken = partial.Groups
	} else if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errUndiscovered, err)
	}
	found = map[schema.GroupVersionResource]resource{}
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"delete", "list", "watch"}}, lists) {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if gvr := gv.WithResource(r.Name); !strings.Contains(r.Name, "/") && !ignored(gvr.GroupResource()) {
				found[gvr] = resource{kind: r.Kind, namespaced: r.Namespaced}
			}
		}
	}
	return found, broken, nil
}

// preferred returns the resources of one group, each in the preferred version, or in the first that has it. A group that is not served has
// none.
func preferred(ctx context.Context, from discovery.DiscoveryInterface, group string) ([]*metav1.APIResourceList, error) {
	var g metav1.APIGroup
	err := from.RESTClient().Get().AbsPath("/apis", group).Do(ctx).Into(&g)
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	slices.SortStableFunc(g.Versions, func(a, b metav1.GroupVersionForDiscovery) int {
		switch g.PreferredVersion.GroupVersion {
		case a.GroupVersion:
			return -1
		case b.GroupVersion:
			return 1
		}
		return 0
	})
	var lists []*metav1.APIResourceList
	have := map[string]bool{}
	for _, v := range g.Versions {
		list, err := from.ServerResourcesForGroupVersion(v.GroupVersion)
		if apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		list.APIResources = slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool { return have[r.Name] })
		for _, r := range list.APIResources {
			have[r.Name] = true
		}
		lists = append(lists, list)
	}
	return lists, nil
}

// refresh starts monitors for new resources and stops those of resources that are no longer served. Monitors of groups whose discovery
// failed go on; refresh runs again for these after a pause.
func (m *monitors) refresh(ctx context.Context, group *errgroup.Group, of string) error {
	found, broken, err := m.discover(ctx, of)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for gvr, w := range m.running {
		if of != everything && gvr.Group != of {
			continue
		}
		if _, ok := found[gvr]; !ok && broken[gvr.GroupVersion()] == nil {
			w.stop()
			delete(m.running, gvr)
		}
	}
	for gvr, r := range found {
		if m.running[gvr] != nil {
			continue
		}
		w, err := m.start(ctx, group, gvr, r)
		if err != nil {
			return fmt.Errorf("monitor %s: %w", gvr, err)
		}
		m.running[gvr] = w
	}
	if len(broken) > 0 {
		return fmt.Errorf("%w: %w", errUndiscovered, &discovery.ErrGroupDiscoveryFailed{Groups: broken})
	}
	return nil
}

// start watches one resource: with the informer that other controllers share if there is one, else by metadata. Where objects may be
// hidden, it always watches metadata: the owner of a hidden object may be deleted, and an owner may be hidden.
func (m *monitors) start(ctx context.Context, group *errgroup.Group, gvr schema.GroupVersionResource, r resource) (*monitor, error) {
	of := &resourceKind{resource: gvr, kind: r.kind}
	handler := controllers.Handler[metav1.Object]{
		Add:    func(o metav1.Object) { m.observed(describe(of, o)) },
		Update: func(_, o metav1.Object) { m.observed(describe(of, o)) },
		Delete: func(o metav1.Object) { m.removed(o.GetUID()) },
	}
	if informer := m.d.Informer(gvr); informer != nil && !m.d.Cluster.Initializers {
		registration, err := controllers.SubscribeWhileRunning(m.d, informer, handler)
		if err != nil {
			return nil, err
		}
		return &monitor{stop: func() {}, synced: registration.HasSyncedChecker().Done()}, nil
	}
	one := metadatareflector.New(func(o metav1.Object) { m.observed(describe(of, o)) },
		func(g metadatareflector.Deleted) { m.removed(g.UID) })
	ctx, stop := context.WithCancel(ctx)
	group.Go(func() error { return one.Run(ctx, m.d.Metadata, gvr) })
	return &monitor{stop: stop, synced: one.Synced(), stopped: ctx.Done()}, nil
}

func describe(of *resourceKind, o metav1.Object) *object {
	d := &object{
		resourceKind: of, uid: o.GetUID(), namespace: o.GetNamespace(), name: o.GetName(),
		version: o.GetResourceVersion(), owners: o.GetOwnerReferences(), deleting: o.GetDeletionTimestamp() != nil,
	}
	for _, f := range o.GetFinalizers() {
		if d.deleting || f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents {
			d.finalizers = append(d.finalizers, f)
		}
	}
	return d
}
