// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/metadatareflector"
	"github.com/mortise-dev/mortise/internal/quota"
)

// patience is how long a count waits for the watches of the resources that it counts.
const patience = 30 * time.Second

// follower watches the resources that quotas name, and reports when usage is released.
type follower struct {
	d        *controllers.Deps
	released func(r schema.GroupResource, namespace string)
	run      func(func(context.Context) error) context.CancelFunc // runs a function until it is stopped or the controller ends

	mu        sync.Mutex
	followed  map[schema.GroupResource]*followed
	informers map[schema.GroupVersionResource]<-chan struct{} // subscriptions last; closed when synced
}

type followed struct {
	gvr       schema.GroupVersionResource
	synced    <-chan struct{}
	forgotten chan struct{} // closed when the watch is forgotten, which then may never be synced
	stop      context.CancelFunc
}

func newFollower(d *controllers.Deps, released func(schema.GroupResource, string)) *follower {
	return &follower{
		d: d, released: released,
		followed: map[schema.GroupResource]*followed{}, informers: map[schema.GroupVersionResource]<-chan struct{}{},
	}
}

// begin makes all that the follower starts end with ctx, and adds it to group.
func (f *follower) begin(ctx context.Context, group *errgroup.Group) {
	f.run = func(of func(context.Context) error) context.CancelFunc {
		ctx, stop := context.WithCancel(ctx)
		group.Go(func() error { return of(ctx) })
		return stop
	}
}

// follow returns once it observes deletions of a resource; false if the resource is not served, or cannot be counted.
func (f *follower) follow(ctx context.Context, r schema.GroupResource) (schema.GroupVersionResource, bool, error) {
	timer := f.d.Clock.NewTimer(patience)
	defer timer.Stop()
	for {
		one, err := f.start(r)
		if err != nil || one == nil {
			return schema.GroupVersionResource{}, false, err
		}
		select {
		case <-one.synced:
			return one.gvr, true, nil
		case <-one.forgotten: // look up its group again
		case <-timer.C():
			return one.gvr, false, fmt.Errorf("no list after %s", patience)
		case <-ctx.Done():
			return one.gvr, false, ctx.Err()
		}
	}
}

func (f *follower) start(r schema.GroupResource) (*followed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.followed[r]; one != nil {
		return one, nil
	}
	gvr, ok, err := f.find(r)
	if err != nil || !ok {
		return nil, err
	}
	one := &followed{gvr: gvr, forgotten: make(chan struct{}), stop: func() {}}
	informer, err := f.informer(gvr)
	if err != nil {
		return nil, err
	}
	if one.synced = informer; informer == nil || f.d.Cluster.Initializers { // informers do not see objects that wait for initializers
		meta := metadatareflector.New(func(metav1.Object) {}, func(g metadatareflector.Deleted) { f.released(r, g.Namespace) })
		one.synced = meta.Synced()
		one.stop = f.run(func(ctx context.Context) error { return meta.Run(ctx, f.d.Metadata, gvr) })
	}
	f.followed[r] = one
	return one, nil
}

// informer subscribes to a resource's informer if its updates matter or another controller has the informer; otherwise it returns nil.
func (f *follower) informer(gvr schema.GroupVersionResource) (<-chan struct{}, error) {
	if synced := f.informers[gvr]; synced != nil {
		return synced, nil
	}
	r := gvr.GroupResource()
	var registration cache.ResourceEventHandlerRegistration
	var err error
	core := f.d.Informers.Core().V1()
	switch {
	case gvr == corev1.SchemeGroupVersion.WithResource("pods"):
		registration, err = subscribe(f, r, core.Pods().Informer(), func(before, updated *corev1.Pod) bool {
			return quota.PodReleases(before, updated, f.d.Clock.Now())
		})
	case gvr == corev1.SchemeGroupVersion.WithResource("services"):
		registration, err = subscribe(f, r, core.Services().Informer(), quota.ServiceReleases)
	case gvr == corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"):
		registration, err = subscribe(f, r, core.PersistentVolumeClaims().Informer(), quota.VolumeClaimReleases)
	default:
		informer := f.d.Informer(gvr)
		if informer == nil {
			return nil, nil
		}
		registration, err = subscribe[metav1.Object](f, r, informer, nil)
	}
	if err != nil {
		return nil, err
	}
	f.informers[gvr] = registration.HasSyncedChecker().Done()
	return f.informers[gvr], nil
}

// subscribe reports deletions, and updates that release usage.
func subscribe[T metav1.Object](f *follower, r schema.GroupResource, informer cache.SharedIndexInformer,
	releases func(before, now T) bool) (cache.ResourceEventHandlerRegistration, error) {
	h := controllers.Handler[T]{Delete: func(o T) { f.released(r, o.GetNamespace()) }}
	if releases != nil {
		h.Update = func(before, now T) {
			if releases(before, now) {
				f.released(r, now.GetNamespace())
			}
		}
	}
	return controllers.SubscribeWhileRunning(f.d, informer, h)
}

// find returns the preferred version of a namespaced resource whose objects can be created, listed, watched and deleted.
func (f *follower) find(r schema.GroupResource) (schema.GroupVersionResource, bool, error) {
	gvr, err := f.d.RESTMapper.ResourceFor(r.WithVersion(""))
	if meta.IsNoMatchError(err) {
		return gvr, false, nil
	}
	if err != nil {
		return gvr, false, fmt.Errorf("map resource: %w", err)
	}
	if gvr.GroupResource() != r {
		return gvr, false, nil // a singular, or a resource of another group
	}
	list, err := f.d.Discovery.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if err != nil {
		return gvr, false, fmt.Errorf("discover resources: %w", err)
	}
	for i := range list.APIResources {
		if one := &list.APIResources[i]; one.Name == r.Resource {
			able := one.Namespaced
			for _, verb := range []string{"create", "list", "watch", "delete"} {
				able = able && slices.Contains(one.Verbs, verb)
			}
			return gvr, able, nil
		}
	}
	return gvr, false, nil
}

// forget looks up the resources of a group again: they may have been added or removed, or be served in other versions.
func (f *follower) forget(group string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r, one := range f.followed {
		if r.Group == group {
			one.stop()
			close(one.forgotten)
			delete(f.followed, r)
		}
	}
}
