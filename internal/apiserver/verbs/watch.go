// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/internal/sharedobjects"
	"github.com/mortise-dev/mortise/store"
)

const (
	minWatch         = 30 * time.Minute // a watch without timeoutSeconds lasts this long or up to twice as long
	bookmarkInterval = time.Minute
	lastBookmark     = 2 * time.Second  // before the end
	writeTimeout     = 30 * time.Second // a client that takes no bytes for so long is too slow
)

// watch answers with changes as they come.
func watch(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	s, err := q.listOptions()
	if err != nil {
		return err
	}
	timeout := time.Duration(float64(minWatch) * (1 + rand.Float64()))
	if s.TimeoutSeconds != nil && *s.TimeoutSeconds != 0 {
		timeout = time.Duration(*s.TimeoutSeconds) * time.Second
	}
	w := &watching{req: q, s: s, under: q.kind.Under(q.ns)}
	w.traffic = &q.kind.Traffic[q.version]
	if s.Name != "" && (q.ns != "" || !q.kind.Namespaced) {
		w.key = q.kind.Key(q.ns, s.Name)
	}
	if q.accept.target != nil {
		if w.table, err = q.converter(*q.accept.target); err != nil {
			return err
		}
	}
	cursor, initial, err := q.reader.Watch(q.ctx, q.kind, q.ns, s)
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsTimeout(err):
		w.refused = err // the watch begins, and reports the error
	case errors.Is(err, watchcache.ErrStopped):
		timeout = -1 // the kind's definition changed under the request: the watch ends at once, as those that began before
	case err != nil:
		return err
	default:
		cursor.Narrow(w.scope())
		defer lasting.After(q.w, cursor.Close)
	}
	if err := q.negotiateStream(); err != nil {
		return err
	}
	if initial != nil {
		if err := q.foresee(initial.Records); err != nil {
			return err // while the response can still be an error
		}
	}
	w.cursor, w.deadline = cursor, timeout
	if wsstream.IsWebSocketRequest(q.r) {
		w.overWebSocket(func(gone <-chan struct{}) {
			w.gone = gone
			w.run(initial)
		})
		return nil
	}
	defer lasting.After(q.w, w.close)
	shareable := q.accept.target == nil || q.accept.target.Kind == "PartialObjectMetadata"
	if receiver := sharedobjects.FromContext(q.ctx); receiver != nil && shareable {
		w.receiver = receiver
		receiver.Begin()
		defer receiver.End()
	}
	if w.overHTTP() == nil {
		w.run(initial)
	}
	return nil
}

// scope tells which changes the watch may have to send.
func (w *watching) scope() watchcache.Scope {
	if w.key != "" {
		return watchcache.ByKey(w.key)
	}
	if w.s.Name != "" {
		return watchcache.ByName(w.s.Name)
	}
	if w.s.Fields != nil && w.s.VersionFields == nil {
		if node, ok := w.s.Fields.RequiresExactMatch(watchcache.NodeName); ok {
			return watchcache.ByNode(node)
		}
	}
	if w.under != w.kind.Root {
		return watchcache.ByNamespace(w.under)
	}
	return watchcache.Scope{}
}

// watching is one client's watch.
type watching struct {
	*req
	s        *registry.Selection
	under    string
	key      string // the only key that counts; empty: all under the prefix
	table    *table.Converter
	deadline time.Duration
	refused  error           // why it ends before it has begun; nil: it goes on
	gone     <-chan struct{} // closed when the client has gone; nil: the request's context ends then

	cursor       *watchcache.Cursor
	rouse        func() (begin func()) // has step called again, when begin is called; begin is nil: that is under way
	begun        time.Time
	end, next    *time.Timer // of the watch, and of its next bookmark; nil: there is none to come
	expired, due atomic.Bool // one of these has fired
	from         int64       // revision at which the watch began

	eventStream
	seen int64 // revision up to which the client has seen all events
}

// run begins the watch, and sends events until it times out, the client is gone, or it fails. If the response may go on, run returns when
// the watch has begun.
func (w *watching) run(initial *registry.Found) {
	if w.refused != nil {
		w.fail(w.refused)
		return
	}
	if w.deadline < 0 {
		return
	}
	if w.receiver == nil {
		encoders := &w.kind.Feed.Encoders[w.accept.cached()]
		encoders.Add(1)
		defer lasting.After(w.w, func() { encoders.Add(-1) })
	}
	if initial != nil {
		if err := w.tellInitial(initial); err != nil {
			return
		}
	}
	flowcontrol.Began(w.ctx)
	response := lasting.Of(w.w)
	woken := make(chan struct{}, 1)
	if response != nil {
		w.rouse = response.Rouse
	} else {
		w.rouse = func() func() {
			select {
			case woken <- struct{}{}:
			default: // it is woken already
			}
			return nil
		}
	}
	w.begun, w.from = time.Now(), w.cursor.Seen()
	w.end = w.alarm(w.deadline, &w.expired)
	if first, ok := untilBookmark(w.deadline); ok && w.s.AllowWatchBookmarks {
		w.next = w.alarm(first, &w.due)
	}
	defer lasting.After(w.w, w.stopAlarms)
	if response != nil {
		response.GoOn(w.step)
		return
	}
	for !w.step() {
		select {
		case <-woken:
		case <-w.ctx.Done():
			return
		case <-w.gone:
			return
		case <-w.lifetime.Context.Done():
			return
		}
	}
}

// step sends what there is to send, and reports whether the watch has ended. It is called again when the watch is roused.
func (w *watching) step() (ended bool) {
	for w.ctx.Err() == nil && w.lifetime.Context.Err() == nil && !w.expired.Load() {
		if w.due.Swap(false) && !w.remind() {
			return true
		}
		if w.cursor.Await(w.rouse) {
			return false
		}
		if !w.drain(w.cursor) {
			return true
		}
	}
	return true
}

// remind sends a bookmark of what is new, as now and then, and once before the end, so that the next watch begins near it.
func (w *watching) remind() bool {
	if seen := w.cursor.Seen(); seen > w.from && (w.bookmark(seen, false) != nil || w.flush() != nil) {
		return false
	}
	if again, ok := untilBookmark(w.deadline - time.Since(w.begun)); ok {
		w.next.Reset(again)
	}
	return true
}

// alarm returns a timer that sets a flag and wakes the watch.
func (w *watching) alarm(after time.Duration, fired *atomic.Bool) *time.Timer {
	return time.AfterFunc(after, func() {
		fired.Store(true)
		if begin := w.rouse(); begin != nil {
			begin()
		}
	})
}

func (w *watching) stopAlarms() {
	w.end.Stop()
	if w.next != nil {
		w.next.Stop()
	}
}

// untilBookmark is how long a watch that has some time left waits for its next bookmark; false: there is none to come.
func untilBookmark(left time.Duration) (time.Duration, bool) {
	if left <= lastBookmark {
		return 0, false
	}
	return min(bookmarkInterval, left-lastBookmark), true
}

// drain sends all events that are available, and flushes once.
func (w *watching) drain(c *watchcache.Cursor) bool {
	for {
		events, seen, err := c.Next(w.ctx)
		w.seen = seen
		if err != nil {
			w.fail(err)
			return false
		}
		for i := range events {
			if err := w.patiently(func() error { return w.event(&events[i]) }); err != nil {
				w.fail(err)
				return false
			}
		}
		if len(w.buf) > 64<<10 || !c.More() {
			if w.flush() != nil {
				return false
			}
			if !c.More() {
				return true
			}
		}
	}
}

func (w *watching) tellInitial(initial *registry.Found) error {
	records := initial.Records
	if w.zips && (piecewise{w.req}).fits(records, true) {
		if err := w.initialInPieces(records); err != nil {
			w.fail(err)
			return err
		}
		records = nil
	}
	for _, rec := range records {
		f, err := w.kind.Cached(rec)
		if err == nil {
			err = w.tell("ADDED", f)
		}
		if err != nil {
			w.fail(err)
			return err
		}
		if len(w.buf) > 64<<10 {
			if err := w.flush(); err != nil {
				return err
			}
		}
	}
	if w.s.SendInitialEvents != nil && *w.s.SendInitialEvents && w.s.AllowWatchBookmarks {
		at, err := registry.ParseResourceVersion(initial.Meta.ResourceVersion)
		if err == nil {
			err = w.bookmark(at, true)
		}
		if err != nil {
			return err
		}
	}
	return w.flush()
}

// patiently retries tell, which may call an extension, until it succeeds: as in kube-apiserver, changes are delivered late and
// in order rather than dropped. It first flushes earlier events.
func (w *watching) patiently(tell func() error) error {
	for pause := firstPatience; ; pause = min(2*pause, lastPatience) {
		err := tell()
		if err == nil || w.ver().Foresee == nil || errors.Is(err, store.ErrCompacted) || errors.Is(err, watchcache.ErrExpired) ||
			errors.Is(err, store.ErrClosed) || errors.Is(err, errNoForm) || w.ctx.Err() != nil {
			return err
		}
		if err := w.flush(); err != nil {
			return err
		}
		left := w.deadline - time.Since(w.begun)
		if left <= 0 {
			return context.Canceled // its time is over
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-w.gone:
			timer.Stop()
			return context.Canceled
		case <-w.lifetime.Context.Done():
			timer.Stop()
			return context.Canceled
		case <-w.ctx.Done():
			timer.Stop()
			return w.ctx.Err()
		}
	}
}

// Pauses of a watch whose objects cannot be converted.
const (
	firstPatience = 50 * time.Millisecond
	lastPatience  = 5 * time.Second
)

// event sends one change as this watch's selectors see it.
func (w *watching) event(e *watchcache.Event) error {
	if w.key != "" && e.Key != w.key || w.key == "" && !strings.HasPrefix(e.Key, w.under) {
		return nil
	}
	is, was := e.Record != nil, e.Previous != nil
	var err error
	if !w.s.All() || w.s.Name != "" || w.s.Initialized {
		if is {
			if is, err = w.s.Picks(w.kind, e.Record); err != nil {
				return err
			}
		}
		if was {
			if was, err = w.s.Picks(w.kind, e.Previous); err != nil {
				return err
			}
		}
	}
	var f *watchcache.CachedObject
	what := ""
	switch {
	case is:
		what = "MODIFIED"
		if !was {
			what = "ADDED"
		}
		f, err = w.kind.Cached(e.Record)
	case was:
		what = "DELETED"
		f, err = e.Gone(w.kind)
		if unread := (*store.UnreadableError)(nil); errors.As(err, &unread) {
			return status.UnreadableDeleted(unread)
		}
	default:
		return nil
	}
	if err != nil {
		return err
	}
	return w.tell(what, f)
}

// fail sends the error that ends the watch.
func (w *watching) fail(err error) {
	switch {
	case errors.Is(err, store.ErrCompacted), errors.Is(err, watchcache.ErrExpired):
		w.traffic.End()
		err = w.reader.Expired(w.kind, w.seen)
	case errors.Is(err, context.Canceled), errors.Is(err, store.ErrClosed), errors.Is(err, errNoForm):
		return // the server or the client ends: no error of the watch
	}
	if w.frame("ERROR", status.Of(err)) == nil {
		_ = w.flush() // the connection ends either way
	}
}
