// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
	"github.com/mortise-dev/mortise/store/mvcc"
)

const (
	// groupResponses is how many answers of the watch are published together, if they have arrived.
	groupResponses = 256
	// nudgeFirst and nudgeNext are after how long a waiting reader makes the mirror ask the watch how far it is. Revisions that change none of
	// the mirror's keys are seen only so. etcd does not answer while the watch is behind, so that the mirror asks again.
	nudgeFirst, nudgeNext = 10 * time.Millisecond, 100 * time.Millisecond
)

// errStalled ends a watch that does not get on.
var errStalled = errors.New("the watch does not get on")

// mirror is etcd's keys in memory. One goroutine, follow, writes to the database.
type mirror struct {
	client  *clientv3.Client
	keys    keyspace.Keyspace
	options Options
	db      *mvcc.DB
	writes  writes
	waiting waiting

	bookmark *alarm.Alarm
	armed    atomic.Bool // bookmark is set
	nudge    *alarm.Alarm

	mu       sync.Mutex
	watcher  clientv3.Watcher        // nil between two watches
	stall    context.CancelCauseFunc // ends the watch
	patience patience                // with the watch
	broken   error                   // why there is no watch; nil if there is one

	restarts, reloads atomic.Int64
}

// openMirror reads etcd's keys at the revision from which on it has history, or a newer one if that is long ago. The watch then fills in
// the history up to now.
func openMirror(ctx context.Context, client *clientv3.Client, keys keyspace.Keyspace, o Options, newest int64) (*mirror, error) {
	m := &mirror{client: client, keys: keys, options: o}
	for {
		compacted, err := m.compacted(ctx)
		if err != nil {
			return nil, err
		}
		from := max(compacted, newest-o.HistoryRevisions)
		records, err := m.load(ctx, from)
		if errors.Is(err, store.ErrCompacted) { // meanwhile
			continue
		}
		if err != nil {
			return nil, err
		}
		m.db = mvcc.New(from, o.Options)
		for _, r := range records {
			m.db.Load(r)
		}
		m.db.Publish(o.Clock.Now(), m.db.Seal())
		break
	}
	m.bookmark = alarm.New(o.Clock, func() {
		m.armed.Store(false)
		m.db.Bookmark()
	})
	m.nudge = alarm.New(alarm.System{}, m.nudged)
	return m, nil
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

// watch applies etcd's changes until the watch ends, and returns why it did.
func (m *mirror) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(clientv3.WithRequireLeader(ctx))
	defer cancel(nil)
	// A watcher of its own has a stream of its own, which the client may open to another member than the last one.
	w := clientv3.NewWatcher(m.client)
	responses := w.Watch(ctx, m.keys.First(), clientv3.WithRange(m.keys.End()), clientv3.WithRev(m.db.Staged()+1),
		clientv3.WithProgressNotify(), clientv3.WithCreatedNotify(), clientv3.WithFragment())
	m.setWatch(w, cancel)
	var err error
	for err == nil {
		response, ok := <-responses
		if !ok {
			err = errors.New("the watch has ended")
			break
		}
		err = m.take(&response)
		for n := 0; err == nil && n < groupResponses; n++ {
			select {
			case response, ok = <-responses:
				if ok {
					err = m.take(&response)
				}
				continue
			default:
			}
			break
		}
		m.publish()
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	m.setBroken(err)
	cancel(nil)
	_ = w.Close() // its error is that of the context
	return err
}

func (m *mirror) setWatch(w clientv3.Watcher, stall context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watcher, m.stall = w, stall
	m.patience.begun(time.Now())
}

func (m *mirror) setBroken(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watcher, m.stall, m.broken = nil, nil, err
}

// watches reports whether the mirror has a watch that has not failed.
func (m *mirror) watches() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.watcher != nil && m.broken == nil
}

// take stages the changes of one answer. An answer has whole revisions.
func (m *mirror) take(response *clientv3.WatchResponse) error {
	if response.CompactRevision > 0 {
		return fmt.Errorf("watch after revision %d, etcd's history begins at %d: %w", m.db.Staged(), response.CompactRevision, store.ErrCompacted)
	}
	if err := response.Err(); err != nil {
		return translate(err)
	}
	m.mu.Lock()
	m.broken = nil
	if len(response.Events) > 0 || response.IsProgressNotify() {
		m.patience.heard(time.Now())
	}
	m.mu.Unlock()
	for all := response.Events; len(all) > 0; {
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
	if response.IsProgressNotify() && response.Header.Revision > m.db.Staged() {
		m.db.Replay(response.Header.Revision, nil)
	}
	return nil
}

// publish makes the staged changes visible.
func (m *mirror) publish() {
	if m.db.Staged() == m.db.Revision() {
		return
	}
	now := m.options.Clock.Now()
	m.db.Publish(now, m.db.Seal())
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
				m.publish() // what the watch told last
				mvcc.Reset(m.db, m.options.Clock.Now(), max(revision, m.db.Revision()), records)
				m.waiting.reached(m.db.Revision())
				return nil
			}
		}
		m.setBroken(translate(err))
		if !pause(ctx, wait) {
			return ctx.Err()
		}
	}
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

// nudged asks the watch how far it is, if readers wait, and ends it if they have waited too long.
func (m *mirror) nudged() {
	since := m.waiting.since()
	if since.IsZero() {
		return
	}
	m.mu.Lock()
	w, stall := m.watcher, m.stall
	over := w != nil && m.patience.over(time.Now(), since)
	m.mu.Unlock()
	switch {
	case w == nil:
	case over:
		stall(errStalled)
	default:
		ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(context.Background()), nudgeNext)
		_ = w.RequestProgress(ctx) // asked again
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
