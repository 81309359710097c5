// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package garbagecollector deletes objects whose owners are gone, and carries out foreground deletion and orphaning.
//
// The graph (graph.go) knows every object of every resource that discovery offers for listing, watching and deleting,
// and the owners of each. It is pure: an observation goes in, the UIDs of those to be judged come out, and a judgement says
// what to do. Around it: monitors (monitors.go) feed it from informers, which come and go with CRDs and aggregated APIs;
// the work queue holds UIDs; and this file carries verdicts out.
//
// The collector trusts its observation of an owner, since it will observe the deletion too. It asks the server for an owner that it never
// observed, once for all dependents; while such an owner exists and stays unobserved, the collector asks again and again (unseen.go). Every
// deletion and patch has the verdict's UID and resourceVersion as preconditions, so that the server keeps an object that changed meanwhile
// (it lost an owner reference, say) until the collector has observed and judged its new state.
//
// Worked example, foreground: a client deletes a Deployment with propagationPolicy=Foreground. It stays, with a deletion timestamp and the
// finalizer foregroundDeletion. The collector judges its ReplicaSet: the only owner waits for it, and it has dependents itself, so the
// collector deletes it in the foreground too. It judges the pods, which have no dependents, and deletes them. The deletion of each pod
// wakes the ReplicaSet; after the last, nothing blocks the ReplicaSet, and the collector removes its finalizer. Its deletion wakes the
// Deployment, which goes the same way.
package garbagecollector

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop. Its inputs are all resources. The list is empty because the collector watches only metadata of resources
// that no other controller watches.
func Controller() controllers.Controller {
	return controllers.Controller{
		Name:    "garbage-collector-controller",
		Account: "generic-garbage-collector",
		Syncs:   &controllers.Syncs{Flag: "concurrent-gc-syncs", Default: 20},
		New:     build,
	}
}

type controller struct {
	metadata metadata.Interface
	mapper   meta.RESTMapper
	recorder record.EventRecorder
	queue    *controllers.Queue[types.UID]
	owners   *controllers.Queue[ownerKey] // owners to ask for until they are gone
	monitors *monitors
	gates    gates

	mu    sync.Mutex
	graph *graph
	polls map[ownerKey]time.Duration // the pause before the next request for each
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	c := &controller{
		metadata: d.Metadata, mapper: d.RESTMapper, recorder: d.Recorder, graph: newGraph(),
		queue:  controllers.NewQueue[types.UID](d, "garbage_collector_attempt_to_delete", d.Syncs()),
		owners: controllers.NewQueue[ownerKey](d, "garbage-collector-owners", 5),
		gates:  gates{open: map[string]int{}, local: map[string]bool{}}, polls: map[ownerKey]time.Duration{},
	}
	var err error
	c.monitors, err = newMonitors(d, c.observed, c.removed, c.gates.defined)
	return c, err
}

// Run runs until ctx ends. It judges only when the graph is complete: a foreground deletion must not end while an unread dependent blocks
// it.
func (c *controller) Run(ctx context.Context) error {
	return c.monitors.Run(ctx, c.judge)
}

func (c *controller) judge(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.queue.Run(ctx, c.sync) })
	group.Go(func() error { return c.owners.Run(ctx, c.poll) })
	return group.Wait()
}

func (c *controller) observed(o *object) {
	c.mu.Lock()
	wake, lost := c.graph.observe(o)
	c.mu.Unlock()
	for _, a := range lost {
		c.warn(a)
	}
	c.wake(wake)
}

func (c *controller) removed(uid types.UID) {
	c.mu.Lock()
	wake := c.graph.remove(uid)
	c.mu.Unlock()
	c.wake(wake)
}

func (c *controller) wake(uids []types.UID) {
	for _, uid := range uids {
		c.queue.Add(uid)
	}
}

func (c *controller) sync(ctx context.Context, uid types.UID) error {
	known := map[ownerKey]bool{}
	for {
		c.mu.Lock()
		o, v := c.graph.objects[uid], c.graph.judge(uid, known)
		c.mu.Unlock()
		if o == nil {
			return nil
		}
		if len(v.ask) == 0 {
			return c.gated(ctx, o, v)
		}
		for _, key := range v.ask {
			exists, err := c.exists(ctx, o, key)
			switch {
			case errors.Is(err, errNamespacedOwner):
				return nil // as upstream: the object stays
			case errors.Is(err, errBusy):
				c.queue.AddAfter(uid, busyPause)
				return nil
			case err != nil:
				return err
			case exists:
				known[key] = true
				c.unseen(key)
				continue
			}
			c.mu.Lock()
			c.graph.noteAbsent(key)
			c.mu.Unlock()
		}
	}
}

// warn records an event for an owner in another namespace: the owner counts as absent, and the object's author should know.
func (c *controller) warn(a astray) {
	child, ref := a.child, reference(a.child, a.owner)
	c.recorder.Eventf(&corev1.ObjectReference{
		APIVersion: child.resource.GroupVersion().String(), Kind: child.kind, Namespace: child.namespace, Name: child.name, UID: child.uid,
	}, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		ref.APIVersion, ref.Kind, child.namespace, ref.Name, ref.UID, child.namespace)
}

// gated executes a verdict unless the object's API group has too many requests in progress.
func (c *controller) gated(ctx context.Context, o *object, v verdict) error {
	if !v.writes() {
		return c.execute(ctx, o, v)
	}
	ctx, leave, err := c.gates.enter(ctx, o.resource.Group)
	if err != nil {
		c.queue.AddAfter(o.uid, busyPause)
		return nil
	}
	defer leave()
	return c.execute(ctx, o, v)
}

func (c *controller) execute(ctx context.Context, o *object, v verdict) error {
	switch {
	case v.letGo:
		var errs []error
		for _, child := range v.release {
			keep := slices.DeleteFunc(slices.Clone(child.owners), func(ref metav1.OwnerReference) bool { return ref.UID == o.uid })
			errs = append(errs, c.patch(ctx, child, map[string]any{"ownerReferences": keep}))
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("orphan dependents of %s: %w", o.name, err)
		}
		return c.dropFinalizer(ctx, o, metav1.FinalizerOrphanDependents)
	case v.finish:
		return c.dropFinalizer(ctx, o, metav1.FinalizerDeleteDependents)
	case len(v.wake) > 0:
		c.wake(v.wake)
		return nil
	case v.trim:
		return c.patch(ctx, o, map[string]any{"ownerReferences": v.keep})
	case v.policy != "":
		if v.unblock {
			owners := slices.Clone(o.owners)
			no := false
			for i := range owners {
				owners[i].BlockOwnerDeletion = &no
			}
			if slices.ContainsFunc(o.owners, blocks) {
				return c.patch(ctx, o, map[string]any{"ownerReferences": owners}) // its event requeues it
			}
		}
		return c.delete(ctx, o, v.policy)
	}
	return nil
}

func (c *controller) api(o *object) metadata.ResourceInterface {
	if o.namespace == "" {
		return c.metadata.Resource(o.resource)
	}
	return c.metadata.Resource(o.resource).Namespace(o.namespace)
}

func (c *controller) delete(ctx context.Context, o *object, policy metav1.DeletionPropagation) error {
	err := c.api(o).Delete(ctx, o.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &o.uid, ResourceVersion: &o.version},
	})
	if apierrors.IsNotFound(err) {
		return nil // its event is on the way
	}
	return err
}

// patch merges changes into an object's metadata, unless the object has changed since its observation.
func (c *controller) patch(ctx context.Context, o *object, metadata map[string]any) error {
	metadata["uid"], metadata["resourceVersion"] = o.uid, o.version
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.api(o).Patch(ctx, o.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *controller) dropFinalizer(ctx context.Context, o *object, finalizer string) error {
	keep := slices.DeleteFunc(slices.Clone(o.finalizers), func(f string) bool { return f == finalizer })
	return c.patch(ctx, o, map[string]any{"finalizers": keep})
}
