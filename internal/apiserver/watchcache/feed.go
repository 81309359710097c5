// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"weak"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

const (
	defaultCapacity = 1024     // events that a feed keeps for resuming watches
	maxLag          = 100_000  // a watch whose cursor is this many events behind is ended
	maxLagBytes     = 64 << 20 // size of the objects in these events
	milestoneEvents = 1024     // about this many events lie between the nodes where the list may be cut
)

// ErrExpired is returned to a cursor that is too far behind, because its client is too slow.
var ErrExpired = errors.New("watch is too far behind")

// Lifetime is the lifetime of feeds: they run until its context ends. Its owner waits for their end.
type Lifetime struct {
	Context context.Context
	Group   sync.WaitGroup
}

// Event is one change, with the cached objects that watchers need in addition to those on its records.
type Event struct {
	store.Event
	gone atomic.Pointer[CachedObject]
}

// Gone returns the object before the change, at the change's revision. Watchers receive it when an object is deleted or
// no longer matches their selector. All callers get the same object, concurrent ones too.
func (e *Event) Gone(k *Kind) (*CachedObject, error) {
	if f := e.gone.Load(); f != nil {
		return f, nil
	}
	before, err := k.Cached(e.Previous)
	if err != nil {
		return nil, err
	}
	hub := before.Hub.DeepCopyObject().(resource.Object)
	hub.SetResourceVersion(strconv.FormatInt(e.Revision, 10))
	if f := k.NewCachedObject(hub); e.gone.CompareAndSwap(nil, f) {
		return f, nil
	}
	return e.gone.Load(), nil
}

// node is one batch of events.
type node struct {
	revision int64
	count    int64 // number of events in the feed up to and including this node
	bytes    int64 // size of the objects in these events
	events   []Event
	next     atomic.Pointer[node]
	err      atomic.Pointer[error] // why the feed has ended
}

// Feed is the stream of a kind's changes. It starts with its first watcher.
//
// Worked example: the feed began at revision 10, and has the nodes [10 | 12: two events | 15: one event]. A watch that
// resumes after 12 begins at the second node. After it has read the events of the third, it waits to be woken. A watch
// that resumes after 7 begins before the list: it reads an engine watcher until that has passed the beginning of the
// list, and then continues with the list.
//
// A cursor keeps the list alive from its position on. The feed cuts the list behind a cursor that is too far behind,
// even if its client reads nothing. So slow clients use a bounded amount of memory per feed, whatever their number.
type Feed struct {
	kind     *Kind
	storage  Storage
	lifetime *Lifetime
	capacity int64
	lag      int64
	lagBytes int64
	space    int64 // events between milestones

	// Encoders counts the watches that send encodings of each medium, in contrast to those in this process that get objects.
	Encoders [mediaCount]atomic.Int64

	milestones []milestone // only the feed's goroutine uses them

	mu      sync.Mutex
	stop    context.CancelFunc
	stopped bool
	head    atomic.Pointer[node]
	tail    atomic.Pointer[node]
	seen    atomic.Int64 // all changes up to this revision are in the list

	waiting waiting
}

// milestone is a node at which the list is cut when the node is too old. It does not keep the node alive.
type milestone struct {
	node         weak.Pointer[node]
	count, bytes int64
}

// cut is the successor of a node that is too old.
var cut = &node{}

// mark makes a node a milestone if the last one is far enough away, and cuts the list at milestones that are too old.
func (f *Feed) mark(n *node) {
	if k := len(f.milestones); k == 0 || n.count-f.milestones[k-1].count >= f.space {
		f.milestones = append(f.milestones, milestone{node: weak.Make(n), count: n.count, bytes: n.bytes})
	}
	old := 0
	for old < len(f.milestones) && f.behind(n, f.milestones[old].count, f.milestones[old].bytes) {
		if m := f.milestones[old].node.Value(); m != nil && m != n {
			m.next.Store(cut)
		}
		old++
	}
	if old > 0 {
		f.milestones = append(f.milestones[:0], f.milestones[old:]...)
	}
}

// behind reports whether a place in the list is too far behind its end.
func (f *Feed) behind(end *node, count, bytes int64) bool {
	return end.count-count > f.lag || end.bytes-bytes > f.lagBytes && end.count > count+1
}

// ErrStopped is returned for a kind that is no longer served.
var ErrStopped = fmt.Errorf("kind is no longer served: %w", store.ErrClosed)

// running reports whether the feed has had watchers, and goes on.
func (f *Feed) running() bool {
	t := f.tail.Load()
	return t != nil && t.err.Load() == nil
}

// Start starts the feed unless it runs already. After Stop it returns [ErrStopped].
func (f *Feed) Start() error {
	if f.running() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running() {
		return nil
	}
	if f.stopped {
		return ErrStopped
	}
	at := f.storage.Revision()
	ctx, stop := context.WithCancel(f.lifetime.Context)
	w, err := f.storage.Watch(ctx, f.kind.Root, at)
	if err != nil {
		stop()
		return err
	}
	f.stop = stop
	n := &node{revision: at}
	f.seen.Store(at)
	f.waiting.begin(n)
	f.head.Store(n)
	f.tail.Store(n)
	f.lifetime.Group.Add(1)
	go f.run(ctx, w, n)
	return nil
}

func (f *Feed) run(ctx context.Context, w store.Watcher, tail *node) {
	defer f.lifetime.Group.Done()
	defer w.Close()
	for {
		b, err := w.Next(ctx)
		if err != nil {
			tail.err.Store(&err)
			f.waiting.end()
			return
		}
		if len(b.Events) > 0 {
			tail = f.extend(tail, b)
		}
		f.seen.Store(b.Revision)
	}
}

// extend appends a batch to the list, wakes the cursors that it concerns, and returns the new end.
func (f *Feed) extend(tail *node, b store.Batch) *node {
	n := &node{revision: b.Revision, count: tail.count + int64(len(b.Events)), bytes: tail.bytes, events: make([]Event, len(b.Events))}
	for i := range b.Events {
		n.events[i].Event = b.Events[i]
		if r := b.Events[i].Record; r != nil {
			n.bytes += int64(len(r.Value))
		}
	}
	tail.next.Store(n)
	f.tail.Store(n)
	f.waiting.wake(f.kind, n)
	for h := f.head.Load(); h != n && (n.count-h.count > f.capacity || f.behind(n, h.count, h.bytes)); h = f.head.Load() {
		f.head.Store(h.next.Load())
	}
	f.mark(n)
	return n
}

// Seen returns the revision up to which the feed contains every change.
func (f *Feed) Seen() int64 { return f.seen.Load() }

// Cursor returns a cursor that begins after a revision. The caller must close it.
func (f *Feed) Cursor(ctx context.Context, after int64) (*Cursor, error) {
	if err := f.Start(); err != nil {
		return nil, err
	}
	c := &Cursor{feed: f, after: after}
	h, t := f.head.Load(), f.tail.Load()
	switch {
	case after >= t.revision:
		c.at = t
	case after >= h.revision:
		c.at = h
		for n := h.next.Load(); n != nil && n != cut && n.revision <= after; n = n.next.Load() {
			c.at = n
		}
	default:
		w, err := f.storage.Watch(ctx, f.kind.Root, after)
		if err != nil {
			return nil, err
		}
		c.behind, c.at = w, h
	}
	return c, nil
}

// Cursor is one client's position in a feed. Only one goroutine at a time may use it.
type Cursor struct {
	feed   *Feed
	scope  Scope
	behind store.Watcher // reads changes older than the feed; nil once it has caught up

	// While the cursor is parked, the mutex of the feed's waiting cursors guards these two.
	after int64
	at    *node // nil: the cursor is parked

	// The mutex of the feed's waiting cursors guards these.
	rouse func() (begin func())
	place int // among the waiting, from 1 on; 0: it does not wait
}

// Narrow has changes of a scope wake the cursor, and no others. [Cursor.Next] returns others, too, that it passes.
// The caller calls it once, before [Cursor.Await].
func (c *Cursor) Narrow(s Scope) {
	c.scope = s
	if s.by == byNode {
		c.feed.waiting.byNode.Add(1)
	}
}

// Close releases the cursor. A call of what [Cursor.Await] was given may be under way.
func (c *Cursor) Close() {
	c.feed.waiting.leave(c)
	if c.scope.by == byNode {
		c.feed.waiting.byNode.Add(-1)
	}
	c.caughtUp()
}

// resume ends the wait of a cursor that may be parked, so that it has a position.
func (c *Cursor) resume() {
	if !c.scope.all() {
		c.feed.waiting.leave(c)
	}
}

func (c *Cursor) caughtUp() {
	if c.behind != nil {
		c.behind.Close()
		c.behind = nil
	}
}

// Await has rouse called, once, when [Cursor.Next] has events or an error to return, and then what rouse has returned, unless it is nil. It
// returns false if that is so already. A further call replaces rouse. Neither must block.
func (c *Cursor) Await(rouse func() (begin func())) bool {
	if c.scope.all() && c.ready() {
		return false
	}
	w := &c.feed.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.at != nil && c.ready() {
		return false
	}
	w.add(c, rouse)
	return true
}

// ready reports whether Next has something to return. The cursor is not parked.
func (c *Cursor) ready() bool { return c.more() || c.at.err.Load() != nil }

func (c *Cursor) more() bool { return c.behind != nil || c.at.next.Load() != nil }

// Next returns the events of the next batch, possibly none, and the revision that the cursor has then seen.
func (c *Cursor) Next(ctx context.Context) ([]Event, int64, error) {
	c.resume()
	if c.behind != nil {
		return c.catchUp(ctx)
	}
	n := c.at.next.Load()
	if n == nil {
		if e := c.at.err.Load(); e != nil {
			return nil, c.after, *e
		}
		return nil, c.after, nil
	}
	if n == cut || c.feed.behind(c.feed.tail.Load(), n.count, n.bytes) {
		return nil, c.after, ErrExpired
	}
	c.at = n
	events := n.events
	for len(events) > 0 && events[0].Revision <= c.after { // the client began within the batch
		events = events[1:]
	}
	c.after = max(c.after, n.revision)
	return events, c.after, nil
}

// After returns the revision of the last call of [Cursor.Next], or the one that the cursor began after.
func (c *Cursor) After() int64 { return c.after }

// More reports whether the next batch is available.
func (c *Cursor) More() bool {
	c.resume()
	return c.more()
}

// Seen returns the revision up to which a client that has read everything available has seen all changes.
func (c *Cursor) Seen() int64 {
	c.resume()
	if c.behind == nil && c.at.next.Load() == nil {
		// the order matters: load the feed's revision before checking for the end of the list
		if s := c.feed.seen.Load(); s > c.after && c.at.next.Load() == nil {
			c.after = s
		}
	}
	return c.after
}

func (c *Cursor) catchUp(ctx context.Context) ([]Event, int64, error) {
	if c.after >= c.at.revision {
		c.caughtUp()
		return nil, c.after, nil
	}
	b, err := c.behind.Next(ctx)
	if err != nil {
		return nil, c.after, err
	}
	events := make([]Event, len(b.Events))
	for i := range b.Events {
		events[i].Event = b.Events[i]
	}
	c.after = b.Revision
	return events, c.after, nil
}

// Stop ends the feed and all its cursors when its kind is no longer served.
func (f *Feed) Stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	if f.stop != nil {
		f.stop()
	}
}
