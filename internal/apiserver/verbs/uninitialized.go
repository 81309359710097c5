// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// Initialization configures waiting for initializers. Nil: no object waits.
type Initialization struct {
	// Fill are the plug-ins that complete a new object, and Check those that validate one. A change of a waiting object is
	// treated as a create: no client has seen the object, so that it may still change in any way, and must in the end be
	// valid for a create.
	Fill, Check admit.Chain
	// Leaving is closed when the server shuts down: waiting creates then get their response instead of delaying the shutdown.
	Leaving <-chan struct{}
}

// initializedOnly reports whether the client sees initialized objects only.
func (q *req) initializedOnly() bool {
	return q.Initialization != nil && !q.includesUninitialized()
}

func (q *req) includesUninitialized() bool {
	v := q.query()
	return v.Has(v1alpha1.IncludeUninitialized) && truth(v.Get(v1alpha1.IncludeUninitialized))
}

// initialized waits for an object that was just created to be initialised, if it has to be, and returns it as it is then. It
// holds no seat meanwhile, so that initializers find one.
func (q *req) initialized(ctx context.Context, f *watchcache.CachedObject, dryRun bool) (*watchcache.CachedObject, error) {
	if q.Initialization == nil || dryRun || !v1alpha1.Uninitialized(f.Hub) || q.includesUninitialized() {
		return f, nil
	}
	flowcontrol.Began(q.r.Context())
	ctx, cancel := beforeEnd(ctx)
	defer cancel()
	go func() {
		select {
		case <-q.Initialization.Leaving:
			cancel()
		case <-ctx.Done():
		}
	}()
	return q.reader.AwaitInitialized(ctx, q.kind, f)
}

// answerTime is what a create that waits leaves of its request's time to be answered in.
const answerTime = time.Second

// beforeEnd ends a little before ctx does, while the request can still be answered.
func beforeEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(answerTime, time.Until(end)/4)))
}

// refill has the plug-ins that complete new objects complete one that an initializer has changed.
func (q *req) refill(ctx context.Context, obj, old resource.Object, create runtime.Object, dryRun bool) (resource.Object, error) {
	if q.sub != nil || q.Initialization == nil || !registry.Initializing(old) {
		return obj, nil
	}
	at := q.attributes(admit.Create, obj, nil, create, dryRun)
	err := q.Initialization.Fill.Mutate(ctx, q.lagging, at)
	return at.Object, err
}

// recheck has those that judge new objects judge one that an initializer has changed.
func (q *req) recheck(ctx context.Context, obj, old resource.Object, create runtime.Object, dryRun bool) error {
	if q.sub != nil || q.Initialization == nil || !registry.Initializing(old) {
		return nil
	}
	return q.Initialization.Check.Validate(ctx, q.lagging, q.attributes(admit.Create, obj, nil, create, dryRun))
}
