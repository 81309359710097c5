// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// How often a write is tried in all, and the pause before each retry: up to a quarter longer. As in client-go.
const (
	maxTries   = 12
	retryAfter = 10 * time.Second
)

// write is an event, or a series' count, to be written.
type write struct {
	key key
	happening
	count int32 // of the series; 0: it is a single event
	tries int32 // that failed
	seen  int64 // the time of the series' last event
	next  *write
}

// write sends one request, or two, and reports whether to retry.
func (r *Recorder) write(ctx context.Context, w *write) (again bool) {
	if ctx.Err() != nil {
		return false
	}
	e := w.event()
	to := r.client.Events(e.Namespace)
	var err error
	if w.count > 0 {
		_, err = to.Patch(ctx, e.Name, types.StrategicMergePatchType, w.patch(), metav1.PatchOptions{})
	}
	if w.count == 0 || apierrors.IsNotFound(err) {
		_, err = to.Create(ctx, e, metav1.CreateOptions{})
	}
	if err == nil || ctx.Err() != nil {
		return false
	}
	log := r.logger.With("event", e.Name, "namespace", e.Namespace, "reason", e.Reason, "error", err)
	var unmade *rest.RequestConstructionError
	var refused *apierrors.StatusError
	switch {
	case errors.As(err, &unmade):
		log.Warn("Could not create the request for an event")
		return false
	case apierrors.IsAlreadyExists(err) && w.count > 0: // it was created after the patch had not found it
	case apierrors.IsAlreadyExists(err):
		log.Debug("Event already exists")
		return false
	case errors.As(err, &refused):
		level := slog.LevelWarn
		if namespaceGone(refused) {
			level = slog.LevelDebug
		}
		log.Log(ctx, level, "Server rejected the event")
		r.end(w.key)
		return false
	case w.tries+1 < maxTries:
		log.Warn("Could not write the event, retrying")
	}
	if w.tries++; w.tries == maxTries {
		log.Warn("Could not write the event, giving up", "tries", maxTries)
		return false
	}
	return true
}

// namespaceGone reports whether the server refused an event because its namespace is terminating or deleted.
func namespaceGone(err *apierrors.StatusError) bool {
	details := err.Status().Details
	return apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) && details != nil &&
		details.Kind == "namespaces"
}

// tryLater requeues a failed write after a pause.
func (r *Recorder) tryLater(w *write) {
	r.mu.Lock()
	r.retrying[w] = nil
	r.mu.Unlock()
	r.retries.Add(1)
	timer := r.clock.AfterFunc(wait.Jitter(retryAfter, 0.25), func() {
		defer r.retries.Done()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.retrying, w)
		r.queue.push(w)
		r.call()
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.retrying[w]; ok {
		r.retrying[w] = timer
	}
}

// stopRetrying returns when no retry is pending. There are no writers any more.
func (r *Recorder) stopRetrying() {
	r.mu.Lock()
	var timers []clock.Timer
	for _, t := range r.retrying {
		timers = append(timers, t)
	}
	r.mu.Unlock()
	for _, t := range timers {
		if t.Stop() {
			r.retries.Done()
		}
	}
	r.retries.Wait()
}

// fifo is a list of writes. A write is in one list at a time.
type fifo struct {
	first, last *write
	n           int
}

func (q *fifo) push(w *write) {
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
	q.n++
}

func (q *fifo) pop() *write {
	w := q.first
	q.first, w.next = w.next, nil
	if q.first == nil {
		q.last = nil
	}
	q.n--
	return w
}

// prepend moves the writes of another list, which is not empty and not used afterwards, before all others.
func (q *fifo) prepend(others *fifo) {
	others.last.next = q.first
	q.first = others.first
	if q.last == nil {
		q.last = others.last
	}
	q.n += others.n
}
