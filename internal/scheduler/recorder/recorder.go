// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package recorder writes the scheduler's events, with lower priority than its bindings.
//
// A [Reporter] (by [Recorder.For], one for each reporting controller) implements EventRecorder of client-go's tools/events. It enqueues the
// event and returns; writers, which [Recorder.Run] owns, create the Event and send it. On the wire it equals the output of client-go's
// broadcaster: names, fields, series and their patches, retries, and when it gives up.
//
// The scheduler calls [Recorder.Throttle] and [Recorder.Unthrottle] around the binding of pods. One writer always runs while there are
// events, so that events are written however many pods are scheduled; sixteen run when no pods are being bound, or when the number of
// pending events reaches the bound ([Options.Pending]). The recorder does not drop events because of their number: at twice the bound
// Eventf itself waits.
//
// The recorder does not write an event like another one (same type, action, reason, reporter and objects, resource version included) of the
// last six minutes: the two are a series. The second event patches the first with the count of 2, further ones only count. The recorder
// writes the counts every half hour, and for the last time when no event was added for six minutes. Of a single event it keeps only a hash
// and its time, which together give its name: 100,000 of them hold no pointer.
//
// Reading order: reporter.go (recording), series.go (aggregation), recorder.go (scheduling of writers), write.go (one write), event.go (the
// wire).
//
// All methods may be called concurrently; Run only once. The recorder never reads the clock under its lock: a fake clock calls back under
// its own.
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

// most is the number of writers.
const most = 16

// Options are a recorder's settings.
type Options struct {
	// Pending is the number of pending events from which on all writers write, even while bindings have priority; at twice that number
	// Eventf waits. 0: 65,536.
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

	ahead atomic.Int64 // the number of Throttle calls without Unthrottle

	mu      sync.Mutex
	room    sync.Cond     // signals room for more events, or the end
	over    bool          // Run has ended
	last    int64         // the time of the newest event; each event has its own
	pending int           // events that are neither written nor dropped
	queue   fifo          // writes that a writer may take
	open    map[key]*fifo // writes that wait for a write of the same key in progress; nil: none
	recent  recent
	series  map[key]*series
	writing int             // writers at work
	woken   int             // writers that were woken and have not taken a write yet
	idle    []chan struct{} // wakes the idle writers; the last one has the deepest stack

	retrying map[*write]clock.Timer // the value is nil until its timer is set
	retries  sync.WaitGroup
}

// New returns a recorder that writes through the client once Run is called.
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
	hostname, _ := os.Hostname() // empty on an error, as in client-go
	r := &Recorder{
		client: client, clock: o.Clock, logger: o.Logger, bound: o.Pending, hostname: hostname,
		open: map[key]*fifo{}, recent: newRecent(), series: map[key]*series{}, retrying: map[*write]clock.Timer{},
	}
	r.room.L = &r.mu
	return r
}

// For returns the reporter of a name: the reportingController of its events and, with the host's name, their reportingInstance.
func (r *Recorder) For(name string) *Reporter {
	return &Reporter{&source{r, name, name + "-" + r.hostname}, logr.FromSlogHandler(r.logger.Handler())}
}

// Throttle limits the recorder to one writer until Unthrottle is called as often: more urgent requests begin.
func (r *Recorder) Throttle() { r.ahead.Add(1) }

// Unthrottle ends the effect of one Throttle.
func (r *Recorder) Unthrottle() {
	if r.ahead.Add(-1) == 0 {
		r.mu.Lock()
		r.call()
		r.mu.Unlock()
	}
}

// Run writes events until ctx is done, and returns when all writers have ended. It drops the remaining events without a log entry, as a
// process does that ends. When it begins, it writes the events that were recorded before.
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

// work is a writer. It keeps its goroutine, whose stack has grown as deep as requests need.
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

// limit returns how many writers may write now.
func (r *Recorder) limit() int {
	if r.ahead.Load() <= 0 || r.pending >= r.bound {
		return most
	}
	return 1
}

// call wakes as many writers as may write and find a write.
func (r *Recorder) call() {
	for n := min(r.queue.n, r.limit()-r.writing) - r.woken; n > 0 && len(r.idle) > 0; n-- {
		next := len(r.idle) - 1
		r.idle[next] <- struct{}{}
		r.idle = r.idle[:next]
		r.woken++
	}
}

// add enqueues a new write.
func (r *Recorder) add(w *write) {
	r.pending++
	r.queue.push(w)
}

// take returns the next write; nil if there is none, or enough writers are at work. It sets a write aside while another of the same key is
// in progress.
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

// settle ends a write, successful or not, and requeues the writes that waited for it before all others.
func (r *Recorder) settle(w *write) {
	r.pending--
	if held := r.open[w.key]; held != nil {
		r.queue.prepend(held) // the calling writer takes the next write
	}
	delete(r.open, w.key)
	if r.pending < 2*r.bound {
		r.room.Signal()
	}
}
