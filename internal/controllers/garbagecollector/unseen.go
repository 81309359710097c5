// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
)

// errNamespacedOwner reports a cluster-scoped object with a namespaced owner: a mistake of its author. The collector does not delete such
// an object, and no retry helps.
var errNamespacedOwner = errors.New("a cluster-wide object has an owner in a namespace")

// errBusy reports that a group has the maximum of requests in progress.
var errBusy = errors.New("enough requests to the group are under way")

const (
	askTime   = 30 * time.Second // the timeout of a request to a group of another server, which may hang
	perGroup  = 5                // requests in progress to a group of another server: a hanging one must not block all workers
	busyPause = time.Second      // the pause after errBusy
	firstPoll = time.Second      // the first pause before asking again for an existing, unobserved owner; it doubles
	lastPoll  = 1000 * time.Second
)

// gates limit the requests in progress to each group.
type gates struct {
	mu    sync.Mutex
	open  map[string]int
	local map[string]bool // groups of custom resources, which this server serves like its own
}

// defined records a group of custom resources.
func (g *gates) defined(group string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.local[group] = true
}

// ours reports whether this server serves a group.
func (g *gates) ours(group string) bool {
	return g.local[group] || scheme.Scheme.IsGroupRegistered(group) || group == "apiextensions.k8s.io" || group == "apiregistration.k8s.io"
}

// enter admits requests to a group, or returns errBusy; leave ends them. Requests to a group of another server have a timeout.
func (g *gates) enter(ctx context.Context, group string) (inner context.Context, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ours(group) {
		return ctx, func() {}, nil // no timeout: orphaning ten thousand dependents may take longer
	}
	if g.open[group] >= perGroup {
		return nil, nil, errBusy
	}
	g.open[group]++
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("group %q did not answer within %v", group, askTime))
	return ctx, func() {
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.open[group]--; g.open[group] == 0 {
			delete(g.open, group)
		}
	}, nil
}

// exists asks the server whether an owner exists.
func (c *controller) exists(ctx context.Context, child *object, key ownerKey) (bool, error) {
	version := ""
	for _, ref := range child.owners {
		if ref.UID == key.uid {
			if gv, err := schema.ParseGroupVersion(ref.APIVersion); err == nil {
				version = gv.Version
			}
		}
	}
	mapping, err := c.mapper.RESTMapping(schema.GroupKind{Group: key.group, Kind: key.kind}, version)
	if err != nil {
		return false, fmt.Errorf("map owner kind %s.%s: %w", key.kind, key.group, err)
	}
	var api metadata.ResourceInterface = c.metadata.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if key.namespace == "" {
			return false, errNamespacedOwner
		}
		api = c.metadata.Resource(mapping.Resource).Namespace(key.namespace)
	}
	ctx, leave, err := c.gates.enter(ctx, key.group)
	if err != nil {
		return false, err
	}
	defer leave()
	owner, err := api.Get(ctx, key.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && owner.UID != key.uid:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get owner %s %s: %w", key.kind, key.name, errors.Join(err, context.Cause(ctx)))
	}
	return true, nil
}

// unseen records an existing owner that was not observed: its event is on the way, or its kind cannot be watched. In the second case the
// collector asks again until the owner is gone.
func (c *controller) unseen(key ownerKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.polls[key]; ok || c.graph.objects[key.uid] != nil {
		return
	}
	c.polls[key] = firstPoll
	c.owners.AddAfter(key, firstPoll)
}

// poll asks for an owner again.
func (c *controller) poll(ctx context.Context, key ownerKey) error {
	c.mu.Lock()
	var child *object
	var children []types.UID
	for uid := range c.graph.dependents[key.uid] {
		children = append(children, uid)
		if o := c.graph.objects[uid]; o != nil {
			child = o
		}
	}
	if child == nil || c.graph.objects[key.uid] != nil {
		delete(c.polls, key) // no dependent needs it any more, or its deletion will be observed
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	there, err := c.exists(ctx, child, key)
	if errors.Is(err, errBusy) {
		c.owners.AddAfter(key, busyPause)
		return nil
	} else if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if there {
		c.polls[key] = min(2*c.polls[key], lastPoll)
		c.owners.AddAfter(key, c.polls[key])
		return nil
	}
	delete(c.polls, key)
	c.graph.noteAbsent(key)
	c.wake(children)
	return nil
}
