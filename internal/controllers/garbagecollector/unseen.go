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

// errNamespacedOwner is the error of a cluster-scoped object with a namespaced owner: a mistake for which nothing is
// deleted, and that no retry fixes.
var errNamespacedOwner = errors.New("a cluster-wide object has an owner in a namespace")

// errBusy is that a group has enough requests under way.
var errBusy = errors.New("enough requests to the group are under way")

const (
	askTime   = 30 * time.Second // how long a request may take: another server may answer, or not
	perGroup  = 5                // requests to one group at a time that is not of this server: who hangs must not have all workers
	busyPause = time.Second      // until what was too much is tried again
	firstPoll = time.Second      // after which an owner that exists, but was not observed, is asked for again; it doubles
	lastPoll  = 1000 * time.Second
)

// gates count the requests to each group.
type gates struct {
	mu    sync.Mutex
	open  map[string]int
	local map[string]bool // groups with custom resources: this server answers for them, as it does for its own
}

// defined takes note of a group with custom resources.
func (g *gates) defined(group string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.local[group] = true
}

// ours tells whether this server answers for a group.
func (g *gates) ours(group string) bool {
	return g.local[group] || scheme.Scheme.IsGroupRegistered(group) || group == "apiextensions.k8s.io" || group == "apiregistration.k8s.io"
}

// enter lets requests to a group begin, or says that it is busy; leave ends them. They have their time, unless this server answers.
func (g *gates) enter(ctx context.Context, group string) (inner context.Context, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ours(group) {
		return ctx, func() {}, nil // who lets ten thousand dependents go may take longer
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

// exists asks the server for an owner.
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

// unseen takes note of an owner that exists and was not observed: its event is on the way, or its kind cannot be watched. Then it has to
// be asked for until it is gone.
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
		delete(c.polls, key) // it is not needed any more, or its deletion will be observed
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
