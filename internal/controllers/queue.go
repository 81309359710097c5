// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"golang.org/x/sync/errgroup"
)

// Queue holds the keys that a controller has to sync. It holds a key once, however often it is added, and never gives it to two workers at
// a time: a key that is added during its sync is synced again afterwards.
type Queue[K comparable] struct{ of *queue }

// queue is a Queue of keys of any type. All queues are of it: for each type of keys the program would have all of workqueue's code once
// more.
type queue struct {
	work    workqueue.TypedRateLimitingInterface[any]
	name    string
	log     *slog.Logger
	metrics *queueMetrics
	workers int
	turn    func(what string) time.Duration
	retry   *retrying
}

// NewQueue creates a controller's queue. The name tells several queues of one controller apart. A failed key comes back after 5 ms,
// doubling up to 1000 s; over all keys, the queue retries no more than ten a second after a burst of a hundred.
func NewQueue[K comparable](d *Deps, name string, workers int) *Queue[K] {
	return &Queue[K]{newQueue(d, name, workers)}
}

func newQueue(d *Deps, name string, workers int) *queue {
	q := &queue{name: name, log: d.Logger.With("queue", name), metrics: d.Metrics.queue(name), workers: workers, turn: d.turn,
		retry: newRetrying(d.retries)}
	config := workqueue.TypedRateLimitingQueueConfig[any]{Clock: d.Clock}
	if q.metrics != nil {
		measured := &measuredQueue{
			TypedInterface: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[any]{Clock: d.Clock}),
			metrics:        q.metrics, clock: d.Clock, added: map[any]time.Time{}, began: map[any]time.Time{},
		}
		d.Metrics.running(name, measured)
		config.DelayingQueue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[any]{Clock: d.Clock, Queue: measured})
	}
	q.work = workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[any](), config)
	d.scope.mu.Lock()
	defer d.scope.mu.Unlock()
	d.scope.stops = append(d.scope.stops, q.work.ShutDown) // also if Run is never called
	return q
}

// Add enqueues a key.
func (q *Queue[K]) Add(key K) { q.of.add(key) }

func (q *queue) add(key any) {
	if q.turn != nil {
		q.work.AddAfter(key, q.turn(fmt.Sprintf("%s %v", q.name, key)))
		return
	}
	q.work.Add(key)
}

// AddAfter enqueues a key after d, or at once if d is not positive.
func (q *Queue[K]) AddAfter(key K, d time.Duration) {
	if d <= 0 {
		q.of.add(key)
		return
	}
	q.of.work.AddAfter(key, d)
}

// AddRateLimited enqueues a key after its back-off, as a failed sync does.
func (q *Queue[K]) AddRateLimited(key K) { q.of.work.AddRateLimited(key) }

// Run syncs keys until ctx ends, then waits for the syncs in progress. It logs a failed sync and retries the key after its back-off, for
// ever: nothing else would bring the key back. A sync that panics ends Run with an error.
func (q *Queue[K]) Run(ctx context.Context, sync func(context.Context, K) error) error {
	return q.of.run(ctx, func(ctx context.Context, key any) error { return sync(ctx, key.(K)) })
}

func (q *queue) run(ctx context.Context, sync func(context.Context, any) error) error {
	defer q.retry.end()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		<-ctx.Done()
		q.work.ShutDown()
		return nil
	})
	for range q.workers {
		group.Go(func() error {
			for {
				key, done := q.work.Get()
				if done {
					return nil
				}
				if err := q.one(ctx, key, sync); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// A conflict means that the cache is behind, not that the key has a problem: each event brings the key back, to conflict again until the
// cache has caught up. The queue does not count conflicts from the eighth on. Otherwise the first failure of another kind would wait up to
// a quarter of an hour, and perhaps no other event would bring the key back earlier.
const (
	behind  = 8
	catchUp = time.Second // about the back-off after that many tries
)

// Behind returns the error of a sync that found its cache older than its own last write, where no event of that write enqueues the key: a
// conflict, so that the queue retries the key.
func Behind(of schema.GroupResource, name, why string) error {
	return apierrors.NewConflict(of, name, errors.New(why))
}

// soon is the number of tries that a key gets in its first second.
const soon = 8

// one syncs one key. It returns an error only for a panic.
func (q *queue) one(ctx context.Context, key any, sync func(context.Context, any) error) (err error) {
	defer q.work.Done(key)
	q.retry.back(key)
	defer func() {
		if v := recover(); v != nil {
			err = panicError(fmt.Sprintf("sync %v", key), v, debug.Stack())
		}
	}()
	failure := sync(ctx, key)
	switch {
	case failure == nil, ctx.Err() != nil:
		q.work.Forget(key)
	case apierrors.HasStatusCause(failure, corev1.NamespaceTerminatingCause):
		// A terminating namespace admits no new objects; the deletion of its objects brings the key back.
		q.work.Forget(key)
	default:
		level := slog.LevelWarn
		if apierrors.IsConflict(failure) || apierrors.IsAlreadyExists(failure) || apierrors.IsNotFound(failure) {
			level = slog.LevelDebug // the cache is behind; its next event brings the key back
		}
		tries := q.work.NumRequeues(key) + 1
		if tries > 1 && tries <= soon {
			level = slog.LevelDebug // the first try was logged a moment ago; from soon on each line counts the tries
		}
		q.log.Log(ctx, level, "Could not sync an object, retrying", "key", fmt.Sprint(key), "tries", tries, "error", failure)
		q.metrics.retried()
		if tries <= soon {
			q.retry.soon(key)
		}
		if apierrors.IsConflict(failure) && q.work.NumRequeues(key) >= behind {
			q.work.AddAfter(key, catchUp)
			return nil
		}
		q.work.AddRateLimited(key)
	}
	return nil
}
