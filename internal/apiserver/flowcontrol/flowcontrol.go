// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package flowcontrol limits concurrent requests, so that overload results in waiting and in 429 responses instead of a
// dead server, and so that one client's load does not affect others: Kubernetes' API Priority and Fairness.
//
// A [Controller] follows the stored flow schemas and priority levels. [Controller.Match] finds a request's flow schema
// (match.go), [Controller.Estimate] the number of its seats (estimate.go), and [Controller.Enter] waits for them in the
// queues of its priority level, whose core is package fair. Levels lend each other unused seats, adjusted every ten seconds
// (lend.go). The configuration is in force from its commit on (digest.go), without polling.
//
//	schema := c.Match(info, user)
//	t, ok := c.Enter(ctx, begun, schema, c.Estimate(r, info, schema), info, user)
//	if !ok { … 429, c.RetryAfter(schema) … }
//	defer t.Leave()
//
// [Limiter] is the limit without priorities: the maximum numbers of read-only and of mutating requests.
//
// # Concurrency
//
// All methods are safe for concurrent use. Requests read one immutable configuration and lock their own level only,
// briefly; changes of the configuration are serialized.
package flowcontrol

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// The resources that a [Controller] follows.
var (
	flowSchemas    = schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "flowschemas"}
	priorityLevels = schema.GroupResource{Group: "flowcontrol.apiserver.k8s.io", Resource: "prioritylevelconfigurations"}
)

// Kinds returns the resources that a [Controller] follows.
func Kinds() []schema.GroupResource { return []schema.GroupResource{flowSchemas, priorityLevels} }

// adjustment is the interval at which levels lend and reclaim seats.
const adjustment = 10 * time.Second

// Options of [New]. Seats is required.
type Options struct {
	// Seats is the number of seats of the whole server.
	Seats int
	// Wait is the maximum waiting time of a request without a deadline; 0: 15 s.
	Wait time.Duration
	// Now returns the current time; nil: time.Now.
	Now func() time.Time
	// Stored returns the number of objects of a resource and their average size; false: unknown.
	Stored func(r schema.GroupResource) (count, size int64, ok bool)
}

// Controller applies priority and fairness for one server.
type Controller struct {
	o       Options
	config  atomic.Pointer[config]
	watches watches
	tickets sync.Pool
	sizes   sizes
	peaks   peaks

	mu      sync.Mutex // guards the following fields and changes of config; locked before a level's mutex
	schemas map[string]*flowcontrolv1.FlowSchema
	configs map[string]*flowcontrolv1.PriorityLevelConfiguration
	levels  map[string]*level
	nominal int // the sum over levels, a little more than Seats
	fair    float64
}

// New makes a controller with the mandatory schemas and levels only.
func New(o Options) *Controller {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wait == 0 {
		o.Wait = 15 * time.Second
	}
	c := &Controller{
		o: o, schemas: map[string]*flowcontrolv1.FlowSchema{}, configs: map[string]*flowcontrolv1.PriorityLevelConfiguration{},
		levels: map[string]*level{},
	}
	c.tickets.New = func() any { return &Ticket{} }
	c.watches.counts = map[watched]int{}
	c.peaks.begin(o.Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.digest()
	return c
}

// Load replaces all schemas and levels with the stored ones.
func (c *Controller) Load(ctx context.Context, stored feed.Lister) error {
	found := map[schema.GroupResource][]resource.Object{}
	for _, r := range Kinds() {
		all, err := stored.List(ctx, r, "")
		if err != nil {
			return fmt.Errorf("load flow schemas and priority levels: %w", err)
		}
		found[r] = all
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.schemas)
	clear(c.configs)
	for r, all := range found {
		for _, obj := range all {
			c.note(r, obj.GetName(), obj)
		}
	}
	c.digest()
	return nil
}

// Apply applies a change of an object of one of [Kinds]. When it returns, the change is in force for later requests.
func (c *Controller) Apply(_ context.Context, change *feed.Change) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.note(change.Resource, change.Name, change.Object) {
		c.digest()
	}
	return nil
}

// note stores an object, and reports whether it changes the configuration. The caller holds mu.
func (c *Controller) note(r schema.GroupResource, name string, obj resource.Object) bool {
	switch r {
	case flowSchemas:
		now, _ := obj.(*flowcontrolv1.FlowSchema)
		was := c.schemas[name]
		if now == nil {
			delete(c.schemas, name)
			return was != nil
		}
		c.schemas[name] = now
		return was == nil || was.UID != now.UID || was.Generation != now.Generation
	case priorityLevels:
		now, _ := obj.(*flowcontrolv1.PriorityLevelConfiguration)
		was := c.configs[name]
		if now == nil {
			delete(c.configs, name)
			return was != nil
		}
		c.configs[name] = now
		return was == nil || was.UID != now.UID || was.Generation != now.Generation
	}
	return false
}

// Run adjusts the borrowed seats regularly, until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	t := time.NewTicker(adjustment)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.Adjust()
		}
	}
}

// Adjust computes the seats of all levels until the next adjustment.
func (c *Controller) Adjust() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lend(c.o.Now(), c.levels)
}
