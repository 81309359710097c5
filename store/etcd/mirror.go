// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/etcd/internal/grpcconn"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
	"github.com/mortise-dev/mortise/store/mvcc"
)

const (
	// nudgeFirst and nudgeNext are after how long a waiting reader makes the mirror ask the watch how far it is. Revisions that change none of
	// the mirror's keys are seen only so. etcd does not answer while the watch is behind, so that the mirror asks again.
	nudgeFirst, nudgeNext = 10 * time.Millisecond, 100 * time.Millisecond
	// openHistory is how many revisions of history the mirror has when it opens, so that clients of a server that starts again go on with
	// their watches. No client is served while it comes, and etcd sends a watch that begins far back no more than a thousand revisions in a
	// tenth of a second, for each of which it reads all that come after.
	openHistory = 10_000
)

// errStalled ends a watch that does not get on.
var errStalled = errors.New("the watch does not get on")

// mirror is etcd's keys in memory. The goroutines that read connections write to the database: each answer of the watch, and the engine's
// own commits as soon as they are answered, if the mirror has all revisions before them.
type mirror struct {
	client  *clientv3.Client
	members *members
	keys    keyspace.Keyspace
	options Options
	db      *mvcc.DB
	writes  writes
	waiting waiting

	bookmark *alarm.Alarm
	armed    atomic.Bool // bookmark is set
	nudge    *alarm.Alarm

	applying sync.Mutex        // to write to the database
	source   *watching         // the watch that may; nil between two watches
	own      map[int64]*commit // commits that are answered, by their revisions, until the mirror has reached these

	mu       sync.Mutex
	stream   *grpcconn.Stream        // of the watch; nil between two watches
	stall    context.CancelCauseFunc // ends the watch
	patience patience                // with the watch
	broken   error                   // why there is no watch; nil if there is one

	restarts, reloads atomic.Int64
}

// commit is a commit of the engine that etcd has carried out.
type commit struct {
	writes   []*write
	response *pb.TxnResponse
}

// open reads etcd's keys at the revision from which on it has history, or openHistory ago if that is longer ago. The watch then fills in
// the history up to now.
func (m *mirror) open(ctx context.Context, newest int64) error {
	o := m.options
	for {
		compacted, err := m.compacted(ctx)
		if err != nil {
			return err
		}
		from := max(compacted, newest-min(o.HistoryRevisions, openHistory))
		records, err := m.load(ctx, from)
		if errors.Is(err, store.ErrCompacted) { // meanwhile
			continue
		}
		if err != nil {
			return err
		}
		db := mvcc.New(from, o.Options)
		for _, r := range records {
			db.Load(r)
		}
		db.Publish(o.Clock.Now(), db.Seal())
		m.applying.Lock()
		m.db = db
		m.applying.Unlock()
		break
	}
	m.bookmark = alarm.New(o.Clock, func() {
		m.armed.Store(false)
		m.db.Bookmark()
	})
	m.nudge = alarm.New(alarm.System{}, m.nudged)
	return nil
}

// compacted returns the oldest revision that etcd can read.
func (m *mirror) compacted(ctx context.Context) (int64, error) {
	_, err := m.client.Get(ctx, m.keys.Any(), clientv3.WithRev(1), clientv3.WithCountOnly(), clientv3.WithSerializable())
	if err == nil {
		return 1, nil
	}
	if err = translate(err); !errors.Is(err, store.ErrCompacted) {
		return 0, err
	}
	// Only a watch tells which revision it is.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	for response := range m.client.Watch(ctx, m.keys.Any(), clientv3.WithRev(1)) {
		if response.CompactRevision > 0 {
			return response.CompactRevision, nil
		}
		if err := response.Err(); err != nil {
			return 0, translate(err)
		}
	}
	return 0, ctx.Err()
}

// load reads all records of a revision, in key order.
func (m *mirror) load(ctx context.Context, revision int64) ([]*store.Record, error) {
	var records []*store.Record
	err := readAll(ctx, m.client, m.keys, revision, func(kv *mvccpb.KeyValue) error {
		records = append(records, m.record(kv))
		return nil
	})
	return records, err
}

// record returns the record of a key and value, which is the mirror's own if it has it.
func (m *mirror) record(kv *mvccpb.KeyValue) *store.Record {
	key := m.keys.Inner(kv.Key)
	if m.db != nil {
		if old, _, _ := m.db.Get(context.Background(), key); old != nil && old.Revision == kv.ModRevision {
			return old
		}
	}
	value := kv.Value
	if value == nil {
		value = []byte{}
	}
	return &store.Record{Key: key, Value: value, Revision: kv.ModRevision, Created: kv.CreateRevision}
}

// follow keeps the mirror up to date until ctx ends.
func (m *mirror) follow(ctx context.Context) {
	for wait := firstPause; ctx.Err() == nil; wait = min(2*wait, lastPause) {
		before := m.db.Revision()
		err := m.watch(ctx)
		if errors.Is(err, store.ErrCompacted) {
			err = m.reload(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if m.db.Revision() > before {
			wait = firstPause
		}
		m.restarts.Add(1)
		m.options.Logger.Warn("Lost the watch of etcd, beginning another one", "revision", m.db.Revision(), "error", err)
		pause(ctx, wait)
	}
}

// watching is one watch of etcd. It implements [grpcconn.Receiver].
type watching struct {
	mirror  *mirror
	changes []*mvccpb.Event // of an answer whose end has not arrived
}

// watch applies etcd's changes until the watch ends, and returns why it did.
func (m *mirror) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := m.members.get(ctx)
	if err != nil {
		m.setBroken(err)
		return err
	}
	w := &watching{mirror: m}
	m.applying.Lock()
	m.source = w
	after := m.db.Staged()
	m.applying.Unlock()
	request, err := proto.Marshal(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{
		Key: []byte(m.keys.First()), RangeEnd: []byte(m.keys.End()), StartRevision: after + 1, ProgressNotify: true, Fragment: true}}})
	if err != nil {
		return fmt.Errorf("encode watch of etcd: %w", err)
	}
	stream, err := conn.Open(ctx, watchPath, request, w)
	if err == nil {
		m.setWatch(stream, cancel)
		err = stream.Wait(ctx)
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	} else if err == nil {
		err = errEnded
	}
	m.applying.Lock()
	m.source = nil
	m.applying.Unlock()
	m.setBroken(err)
	m.members.leave(conn, err)
	return translate(err)
}

// errEnded is of a watch that etcd has ended without a reason.
var errEnded = errors.New("the watch has ended")

func (m *mirror) setWatch(stream *grpcconn.Stream, stall context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stream, m.stall = stream, stall
	m.patience.begun(time.Now())
}

func (m *mirror) setBroken(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stream, m.stall, m.broken = nil, nil, err
}

// watches reports whether the mirror has a watch that has not failed.
func (m *mirror) watches() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stream != nil && m.broken == nil
}

// heard notes that the watch has said something, and whether it got on.
func (m *mirror) heard(on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = nil
	if on {
		m.patience.heard(time.Now())
	}
}

// Receive stages the changes of one answer. An answer, whose parts are put together first, has whole revisions.
func (w *watching) Receive(message []byte) error {
	m := w.mirror
	m.applying.Lock()
	defer m.applying.Unlock()
	if m.source != w {
		return errEnded
	}
	if until := eventsUntil(message); until > 0 && until <= m.db.Staged() { // the answers to commits told it
		w.changes = nil
		m.heard(true)
		return nil
	}
	response := &pb.WatchResponse{}
	if err := proto.Unmarshal(message, response); err != nil {
		return fmt.Errorf("decode an answer of etcd's watch: %w", err)
	}
	if response.CompactRevision > 0 {
		return fmt.Errorf("watch after revision %d, etcd's history begins at %d: %w", m.db.Staged(), response.CompactRevision, store.ErrCompacted)
	}
	if response.Canceled {
		return fmt.Errorf("%w: %s", errEnded, response.CancelReason)
	}
	progress := len(response.Events) == 0 && !response.Created
	m.heard(!response.Created)
	if w.changes = append(w.changes, response.Events...); response.Fragment {
		return nil
	}
	for all := w.changes; len(all) > 0; {
		revision := all[0].Kv.ModRevision
		n := 1
		for n < len(all) && all[n].Kv.ModRevision == revision {
			n++
		}
		if revision > m.db.Staged() {
			m.db.Replay(revision, m.writes.events(m, all[:n]))
		}
		all = all[n:]
	}
	w.changes = nil
	if progress && response.Header.GetRevision() > m.db.Staged() {
		m.db.Replay(response.Header.Revision, nil)
	}
	m.stageOwn()
	return nil
}

// committed takes note of a commit of the engine: it is the change of its revision. While there is no watch, the mirror may be about to
// read everything again.
func (m *mirror) committed(writes []*write, response *pb.TxnResponse) {
	if !slices.ContainsFunc(response.Responses, changed) {
		return // deletes of keys that were not there: the revision is another commit's
	}
	m.applying.Lock()
	defer m.applying.Unlock()
	if m.source == nil || response.Header.GetRevision() <= m.db.Staged() {
		return
	}
	if m.own == nil {
		m.own = map[int64]*commit{}
	}
	m.own[response.Header.Revision] = &commit{writes, response}
	m.stageOwn()
}

// changed reports whether a part of a transaction changed a key.
func changed(r *pb.ResponseOp) bool {
	return r.GetResponsePut() != nil || r.GetResponseDeleteRange().GetDeleted() > 0
}

// stageOwn stages the engine's commits that come next. The caller holds applying.
func (m *mirror) stageOwn() {
	for len(m.own) > 0 {
		revision := m.db.Staged() + 1
		c := m.own[revision]
		if c == nil {
			break
		}
		m.db.Replay(revision, m.writes.own(c.writes, revision, c.response))
		delete(m.own, revision)
	}
}

// settled publishes what is staged, when all that a connection has delivered is staged.
func (m *mirror) settled() {
	m.applying.Lock()
	defer m.applying.Unlock()
	if m.db != nil {
		m.publish()
	}
}

// publish makes the staged changes visible. The caller holds applying.
func (m *mirror) publish() {
	if m.db.Staged() == m.db.Revision() {
		return
	}
	now := m.options.Clock.Now()
	m.db.Publish(now, m.db.Seal())
	for revision := range m.own { // those that the watch told first
		if revision <= m.db.Revision() {
			delete(m.own, revision)
		}
	}
	m.waiting.reached(m.db.Revision())
	if m.armed.CompareAndSwap(false, true) {
		m.bookmark.Set(now.Add(m.options.BookmarkEvery))
	}
}

// reload reads everything again, after etcd has compacted changes that the mirror lacks.
func (m *mirror) reload(ctx context.Context) error {
	m.reloads.Add(1)
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		response, err := m.client.Get(clientv3.WithRequireLeader(ctx), m.keys.Any(), clientv3.WithCountOnly())
		if err == nil {
			revision := response.Header.Revision
			var records []*store.Record
			if records, err = m.load(ctx, revision); err == nil {
				m.reset(revision, records)
				return nil
			}
		}
		m.setBroken(translate(err))
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
}

// reset replaces all records by those of a revision.
func (m *mirror) reset(revision int64, records []*store.Record) {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.publish() // what the watch told last
	m.own = nil
	mvcc.Reset(m.db, m.options.Clock.Now(), max(revision, m.db.Revision()), records)
	m.waiting.reached(m.db.Revision())
}

// await returns when the mirror has reached a revision, ctx ends, or closed is closed.
func (m *mirror) await(ctx context.Context, revision int64, closed <-chan struct{}) error {
	if m.db.Revision() >= revision {
		return nil
	}
	reached, leave := m.waiting.add(revision)
	defer leave()
	if m.db.Revision() >= revision { // meanwhile
		return nil
	}
	m.nudge.Set(time.Now().Add(nudgeFirst))
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-closed:
		return store.ErrClosed
	}
}

// progressRequest asks a watch how far it is.
var progressRequest, _ = proto.Marshal(&pb.WatchRequest{
	RequestUnion: &pb.WatchRequest_ProgressRequest{ProgressRequest: &pb.WatchProgressRequest{}},
})

// nudged asks the watch how far it is, if readers wait, and ends it if they have waited too long.
func (m *mirror) nudged() {
	since := m.waiting.since()
	if since.IsZero() {
		return
	}
	m.mu.Lock()
	stream, stall := m.stream, m.stall
	over := stream != nil && m.patience.over(time.Now(), since)
	m.mu.Unlock()
	switch {
	case stream == nil:
	case over:
		stall(errStalled)
	default:
		ctx, cancel := context.WithTimeout(context.Background(), nudgeNext)
		_ = stream.Send(ctx, progressRequest) // asked again
		cancel()
	}
	m.nudge.Set(time.Now().Add(nudgeNext))
}

// explain adds to the error of a read what the mirror knows of its reason.
func (m *mirror) explain(err error) error {
	m.mu.Lock()
	broken := m.broken
	m.mu.Unlock()
	switch since := m.waiting.since(); {
	case broken != nil:
		return fmt.Errorf("no watch of etcd since revision %d: %w: %w", m.db.Revision(), broken, err)
	case !since.IsZero():
		return fmt.Errorf("behind etcd at revision %d for %v: %w", m.db.Revision(), time.Since(since).Round(time.Millisecond), err)
	default:
		return fmt.Errorf("no answer from etcd: %w", err)
	}
}

func (m *mirror) close() {
	m.db.Close()
	m.bookmark.Stop()
	m.nudge.Stop()
}

// waiting is the readers that wait for a revision of the mirror. The zero value is empty.
type waiting struct {
	mu sync.Mutex
	at map[int64]*wait
}

// wait is the readers that wait for one revision.
type wait struct {
	reached chan struct{}
	since   time.Time
	readers int
}

// add returns a channel that is closed when the revision is reached, and a function that ends the wait.
func (w *waiting) add(revision int64) (<-chan struct{}, func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at == nil {
		w.at = map[int64]*wait{}
	}
	one := w.at[revision]
	if one == nil {
		one = &wait{reached: make(chan struct{}), since: time.Now()}
		w.at[revision] = one
	}
	one.readers++
	return one.reached, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if one.readers--; one.readers == 0 && w.at[revision] == one {
			delete(w.at, revision)
		}
	}
}

// reached ends the waits for revisions up to one.
func (w *waiting) reached(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for r, one := range w.at {
		if r <= revision {
			close(one.reached)
			delete(w.at, r)
		}
	}
}

// since returns when the longest wait began; zero: no reader waits.
func (w *waiting) since() (first time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.at {
		if first.IsZero() || one.since.Before(first) {
			first = one.since
		}
	}
	return first
}
