// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/store"
)

const (
	noWatch = -1 // the watch ID of responses that are of no watch, or of all
	// maxWatches is the number of watches of one stream.
	maxWatches = 10_000
	// responseBytes is the size after which a response ends with the revision, or with the event if the client takes fragments.
	responseBytes = 1 << 20
	// progressEvery is the least time between two progress notifications of a watch.
	progressEvery = 5 * time.Second
)

// watches is the service Watch.
type watches struct {
	pb.UnimplementedWatchServer
	*backend
}

// Watch implements [pb.WatchServer].
func (s *watches) Watch(stream pb.Watch_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	w := &watchStream{backend: s.backend, stream: stream, open: map[int64]*watching{}, fail: cancel}
	defer w.running.Wait()
	defer cancel()
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch u := r.RequestUnion.(type) {
		case *pb.WatchRequest_CreateRequest:
			w.create(ctx, u.CreateRequest)
		case *pb.WatchRequest_CancelRequest:
			w.cancel(u.CancelRequest.GetWatchId())
		case *pb.WatchRequest_ProgressRequest:
			w.progress()
		}
		if ctx.Err() != nil {
			return translate(ctx.Err())
		}
	}
}

// watchStream is the watches of one stream.
type watchStream struct {
	*backend
	stream  pb.Watch_WatchServer
	fail    context.CancelFunc // ends the stream
	running sync.WaitGroup

	mu    sync.Mutex // also held while a response is sent
	open  map[int64]*watching
	next  int64   // watch ID
	asked []int64 // the revisions of progress that clients asked for and did not get yet
}

// watching is one watch. The lock of the stream guards reached.
type watching struct {
	interval
	id       int64
	start    int64 // the first revision
	request  *pb.WatchCreateRequest
	stop     context.CancelFunc
	reached  int64 // all events up to this revision are sent
	notified time.Time
}

// send sends a response. The caller holds the lock.
func (w *watchStream) send(r *pb.WatchResponse) {
	if err := w.stream.Send(r); err != nil {
		w.fail()
	}
}

// create begins a watch.
func (w *watchStream) create(ctx context.Context, r *pb.WatchCreateRequest) {
	if len(r.Key) == 0 {
		r.Key = []byte{0}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.engine.Revision()
	answer := &pb.WatchResponse{Header: w.header(now), WatchId: noWatch, Created: true}
	i := newInterval(r.Key, r.RangeEnd)
	switch {
	case !i.single && !i.open && i.from >= i.to:
		answer.CancelReason = "mvcc: watcher range is empty" // etcd's words, here and below
	case r.WatchId != 0 && w.open[r.WatchId] != nil:
		answer.CancelReason = "mvcc: duplicate watch ID provided on the WatchStream"
	case len(w.open) >= maxWatches:
		answer.CancelReason = "mortise: too many watches in the stream"
	}
	if answer.CancelReason != "" {
		answer.Canceled = true
		w.send(answer)
		return
	}
	one := &watching{interval: i, id: r.WatchId, request: r, start: r.StartRevision, reached: now, notified: w.now()}
	if one.start <= 0 {
		one.start = now + 1
	}
	one.reached = min(one.start-1, now)
	if one.id == 0 {
		for w.open[w.next] != nil {
			w.next++
		}
		one.id = w.next
		w.next++
	}
	answer.WatchId = one.id
	cursor, first, err := w.begin(ctx, one)
	w.send(answer)
	if err != nil {
		w.end(one.id, err)
		return
	}
	if len(first.Events) > 0 {
		w.deliver(one, first)
	}
	watched, stop := context.WithCancel(ctx)
	one.stop = stop
	w.open[one.id] = one
	w.running.Go(func() {
		defer stop()
		defer cursor.Close()
		w.follow(watched, one, cursor)
	})
}

// begin returns the cursor of a watch. At the revision to which the history was compacted, the store has no events any more, but the keys
// that were written then: first has them.
func (w *watchStream) begin(ctx context.Context, one *watching) (cursor store.Watcher, first store.Batch, err error) {
	prefix, _ := one.prefix()
	if one.start != w.engine.Compacted() {
		cursor, err = w.engine.Watch(ctx, prefix, one.reached)
		return cursor, first, err
	}
	page, err := w.engine.Range(ctx, store.Range{Prefix: prefix, Revision: one.start})
	if err != nil {
		return nil, first, err
	}
	first.Revision = one.start
	for _, r := range page.Records {
		if r.Revision == one.start {
			first.Events = append(first.Events, store.Event{Revision: one.start, Key: r.Key, Record: r})
		}
	}
	cursor, err = w.engine.Watch(ctx, prefix, one.start)
	return cursor, first, err
}

// end tells that a watch has ended because of an error. The caller holds the lock.
func (w *watchStream) end(id int64, err error) {
	r := &pb.WatchResponse{Header: w.header(w.engine.Revision()), WatchId: id, Canceled: true}
	if errors.Is(err, store.ErrCompacted) {
		r.CompactRevision = w.engine.Compacted()
	} else {
		r.CancelReason = err.Error()
	}
	w.send(r)
}

// cancel ends a watch that the client does not want any more.
func (w *watchStream) cancel(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.open[id]
	if one == nil {
		return
	}
	one.stop()
	delete(w.open, id)
	w.send(&pb.WatchResponse{Header: w.header(w.engine.Revision()), WatchId: id, Canceled: true})
	w.tell()
}

// progress sends the present revision as soon as all watches of the stream have reached it.
func (w *watchStream) progress() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, w.engine.Revision())
	store.New(w.engine).Bookmark()
	w.tell()
}

// tell answers the questions for progress that can be answered. The caller holds the lock.
func (w *watchStream) tell() {
	if len(w.asked) == 0 {
		return
	}
	reached := w.asked[len(w.asked)-1]
	for _, one := range w.open {
		reached = min(reached, one.reached)
	}
	n := 0
	for n < len(w.asked) && w.asked[n] <= reached {
		n++
	}
	if n == 0 {
		return
	}
	w.send(&pb.WatchResponse{Header: w.header(w.asked[n-1]), WatchId: noWatch})
	w.asked = slices.Delete(w.asked, 0, n)
}

// follow sends the events of a watch until ctx ends.
func (w *watchStream) follow(ctx context.Context, one *watching, cursor store.Watcher) {
	for {
		batch, err := cursor.Next(ctx)
		w.mu.Lock()
		switch {
		case ctx.Err() != nil || w.open[one.id] != one:
		case err != nil:
			delete(w.open, one.id)
			w.end(one.id, err)
		default:
			w.deliver(one, batch)
		}
		w.mu.Unlock()
		if err != nil || ctx.Err() != nil {
			return
		}
	}
}

// deliver sends a batch. The caller holds the lock.
func (w *watchStream) deliver(one *watching, batch store.Batch) {
	var part []*mvccpb.Event
	size, sent := 0, false
	flush := func(revision int64, fragment bool) {
		if len(part) > 0 {
			w.send(&pb.WatchResponse{Header: w.header(revision), WatchId: one.id, Events: part, Fragment: fragment})
			part, size, sent = nil, 0, true
		}
	}
	var revision int64
	for _, e := range batch.Events {
		if size >= responseBytes {
			switch {
			case e.Revision != revision:
				flush(revision, false)
			case one.request.Fragment:
				flush(revision, true)
			}
		}
		revision = e.Revision
		if event := w.event(one, e); event != nil {
			part = append(part, event)
			size += proto.Size(event)
		}
	}
	flush(batch.Revision, false)
	one.reached = max(one.reached, batch.Revision)
	now := w.now()
	switch {
	case sent:
		one.notified = now
	case one.request.ProgressNotify && now.Sub(one.notified) >= progressEvery:
		one.notified = now
		w.send(&pb.WatchResponse{Header: w.header(batch.Revision), WatchId: one.id})
	}
	w.tell()
}

// event returns an event as the watch shows it; nil: not at all.
func (w *watchStream) event(one *watching, e store.Event) *mvccpb.Event {
	kind := pb.WatchCreateRequest_NODELETE
	if e.Record != nil {
		kind = pb.WatchCreateRequest_NOPUT
	}
	if e.Revision < one.start || !one.has(e.Key) || slices.Contains(one.request.Filters, kind) {
		return nil
	}
	out := &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: outer(e.Key), ModRevision: e.Revision}}
	if e.Record != nil {
		out.Type, out.Kv = mvccpb.Event_PUT, w.keyValue(e.Record)
	}
	if one.request.PrevKv && e.Previous != nil {
		out.PrevKv = w.keyValue(e.Previous)
	}
	return out
}
