// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package recorder writes the scheduler's events, behind its bindings.
//
// A [Reporter] (by [Recorder.For], one for each reporting controller) implements EventRecorder of client-go's tools/events.
// It enqueues the event and returns; writers, which [Recorder.Run] owns, make the Event and send it. On the wire it equals
// the output of client-go's broadcaster: names, fields, series and their patches, retries, and when it gives up.
//
// The scheduler reports by [Recorder.Throttle] and [Recorder.Unthrottle] when pods are being bound. One writer always runs
// while there are events, so that events are written however many pods are scheduled; sixteen run when no pods are being
// bound, or when the number of pending events reaches the bound ([Options.Pending]). Events are not dropped because of
// their number: at twice the bound Eventf itself waits.
//
// An event like an earlier one (same type, action, reason, reporter and objects, resource version included) of the last six minutes is not
// written: the two are a series. Its second event patches the first with the count of 2, further ones only count. Every half hour the
// counts are written, and the last one when nothing was added for six minutes. For an event that stays single all that is kept is a hash
// and its time, which together give its name back: 100,000 of them hold no pointer.
//
// Reading order: reporter.go (recording), series.go (aggregation), recorder.go (scheduling of writers), write.go (one
// write), event.go (the wire).
//
// All methods may be called concurrently; Run once. The clock is never asked under the lock: a fake one calls back under its own.
package recorder

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	eventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/utils/clock"
)

// most is how many writers there are.
const most = 16

// Options are a recorder's settings.
type Options struct {
	// Pending is the number of pending events from which on all writers write, even while bindings have priority; at twice
	// as many Eventf waits. 0: 65,536.
	Pending int
	Clock   clock.WithDelayedExecution // nil: the real one
	Logger  *slog.Logger               // nil: nothing is logged
}

// Recorder writes events.
type Recorder struct {
	client   eventsv1.EventsGetter
	clock    clock.WithDelayedExecution
	logger   *slog.Logger
	bound    int
	hostname string

	ahead atomic.Int64 // that events give way to

	mu      sync.Mutex
	room    sync.Cond     // there may be room, or it is over
	over    bool          // nothing is written any more
	last    int64         // the time of the newest event: no two have the same
	pending int           // events that are neither written nor given up
	queue   fifo          // those that a writer may take
	open    map[key]*fifo // what waits for a write of the same key that was taken and is not settled; nil: nothing
	recent  recent
	series  map[key]*series
	writing int             // writers that do
	woken   int             // writers that were called and have not looked yet
	idle    []chan struct{} // how to call those that wait; the last one has the deepest stack

	retrying map[*write]clock.Timer // nil for a moment
	retries  sync.WaitGroup
}

// New makes a recorder that writes through the client once it runs.
func New(client eventsv1.EventsGetter, o Options) *Recorder {
	if o.Pending == 0 {
		o.Pending = 1 << 16
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	hostname, _ := os.Hostname() // without one, as with client-go, it is empty
	r := &Recorder{
		client: client, clock: o.Clock, logger: o.Logger, bound: o.Pending, hostname: hostname,
		open: map[key]*fifo{}, recent: newRecent(), series: map[key]*series{}, retrying: map[*write]clock.Timer{},
	}
	r.room.L = &r.mu
	return r
}

// For is the reporter of a name: the reportingController of its events, and with the host's name their reportingInstance.
func (r *Recorder) For(name string) *Reporter {
	return &Reporter{&source{r, name, name + "-" + r.hostname}, logr.FromSlogHandler(r.logger.Handler())}
}

// Throttle has events wait, but for one at a time, until as many calls of Proceed came: something begins that is more urgent.
func (r *Recorder) Throttle() { r.ahead.Add(1) }

// Proceed ends what a Throttle began.
func (r *Recorder) Unthrottle() {
	if r.ahead.Add(-1) == 0 {
		r.mu.Lock()
		r.call()
		r.mu.Unlock()
	}
}

// Run writes until ctx is done, and returns when nothing of it is left. What is not written then is lost, as it is where a process ends,
// and nothing is said of each. Events of before Run are written when it begins.
func (r *Recorder) Run(ctx context.Context) {
	r.mu.Lock()
	r.woken += most
	r.mu.Unlock()
	var writers sync.WaitGroup
	for range most {
		writers.Go(func() { r.work(ctx) })
	}
	r.sweepFrom(ctx)
	r.mu.Lock()
	r.over = true
	r.room.Broadcast()
	r.mu.Unlock()
	writers.Wait()
	r.stopRetrying()
}

// work is a writer. It keeps its goroutine, whose stack has grown as deep as requests go.
func (r *Recorder) work(ctx context.Context) {
	wake := make(chan struct{}, 1)
	r.mu.Lock()
	for ctx.Err() == nil {
		r.woken--
		for w := r.take(); w != nil; w = r.take() {
			r.mu.Unlock()
			again := r.write(ctx, w)
			if again {
				r.tryLater(w)
			}
			r.mu.Lock()
			r.writing--
			if !again {
				r.settle(w)
			}
		}
		r.idle = append(r.idle, wake)
		r.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
		}
		r.mu.Lock()
	}
	r.mu.Unlock()
}

// limit is how many may write now.
func (r *Recorder) limit() int {
	if r.ahead.Load() <= 0 || r.pending >= r.bound {
		return most
	}
	return 1
}

// call wakes as many writers as may write and find something.
func (r *Recorder) call() {
	for n := min(r.queue.n, r.limit()-r.writing) - r.woken; n > 0 && len(r.idle) > 0; n-- {
		next := len(r.idle) - 1
		r.idle[next] <- struct{}{}
		r.idle = r.idle[:next]
		r.woken++
	}
}

// add queues what is new.
func (r *Recorder) add(w *write) {
	r.pending++
	r.queue.push(w)
}

// take is the next write; nil: there is none, or others are enough. One whose key is being written waits for that.
func (r *Recorder) take() *write {
	for !r.over && r.queue.n > 0 && r.writing < r.limit() {
		w := r.queue.pop()
		if w.tries == 0 {
			if held, ok := r.open[w.key]; ok {
				if held == nil {
					held = &fifo{}
					r.open[w.key] = held
				}
				held.push(w)
				continue
			}
			r.open[w.key] = nil
		}
		r.writing++
		return w
	}
	return nil
}

// settle ends a write, for good or bad, so that others of its key go on, before anything of theirs that came later.
func (r *Recorder) settle(w *write) {
	r.pending--
	if held := r.open[w.key]; held != nil {
		r.queue.prepend(held) // the writer that calls this looks next
	}
	delete(r.open, w.key)
	if r.pending < 2*r.bound {
		r.room.Signal()
	}
}
