// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
	"github.com/mortise-dev/mortise/store/mvcc"
)

// DefaultPrefix is kube-apiserver's default of --etcd-prefix.
const DefaultPrefix = keyspace.DefaultPrefix

const (
	// keepaliveTime and keepaliveTimeout bound how long a member that answers nothing keeps its connection. etcd refuses pings that are
	// more frequent than five seconds.
	keepaliveTime, keepaliveTimeout = 5 * time.Second, 3 * time.Second
	// attemptTime and askTime bound one transaction and one question; what takes longer is sent again, to another member.
	attemptTime, askTime = 3 * time.Second, 1500 * time.Millisecond
	// settleTime is how much longer than its context a commit waits, at most, for the outcome of a transaction that was sent.
	settleTime = 10 * time.Second
	// window is how many bytes etcd may send before the client has read them: a page of the mirror's reads at the start.
	window = 16 << 20
)

// Options are the options of an engine.
type Options struct {
	mvcc.Options
	Servers []string    // URLs of the members, at least one
	TLS     *tls.Config // for servers with https; nil: the system's authorities, no client certificate
	// Prefix takes the place of /registry in etcd's keys. The engine then reads and writes no keys but those under /registry/. Empty: keys
	// are those of etcd, and the mirror holds all of them.
	Prefix        string
	OpenTime      time.Duration // how long Open tries to reach etcd; default 20 s, kube-apiserver's
	BookmarkEvery time.Duration // the longest time without a bookmark for a watcher that is behind; default 1 s
	Clock         alarm.Clock   // default: the system's. Leases expire by etcd's clock.
	Logger        *slog.Logger  // default: none
}

func (o Options) withDefaults() Options {
	o.Options = o.Options.WithDefaults()
	o.OpenTime = cmp.Or(o.OpenTime, 20*time.Second)
	o.BookmarkEvery = cmp.Or(o.BookmarkEvery, time.Second)
	if o.Clock == nil {
		o.Clock = alarm.System{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Engine implements [store.Engine] on an etcd cluster.
type Engine struct {
	options  Options
	keys     keyspace.Keyspace
	client   *clientv3.Client // for what is rare
	members  *members         // for transactions, questions and the watch
	mirror   *mirror
	question *question
	leases   *leases
	compact  compaction

	recency
	overtaking overtaking
	elections  elections
	backups

	end     context.CancelFunc // ends the owned goroutines
	owned   sync.WaitGroup
	commits sync.WaitGroup
	closing sync.Mutex // held to begin a commit, and by Close
	closed  chan struct{}
}

var (
	_ store.Engine   = (*Engine)(nil)
	_ store.Backuper = (*Engine)(nil)
	_ store.History  = (*Engine)(nil)

	_ store.RevisionBackuper = (*Engine)(nil)
	_ store.Sizer            = (*Engine)(nil)
	_ store.Bookmarker       = (*Engine)(nil)
	_ store.Prober           = (*Engine)(nil)
	_ store.Compactor        = (*Engine)(nil)
	_ store.StaleReader      = (*Engine)(nil)
)

// Open connects to etcd and fills the mirror. It fails if no member answers in time, if a certificate does not do, or when ctx ends.
func Open(ctx context.Context, options Options) (*Engine, error) {
	o := options.withDefaults()
	if len(o.Servers) == 0 {
		return nil, errors.New("open etcd: no servers")
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: o.Servers, TLS: o.TLS, Logger: zap.NewNop(), MaxUnaryRetries: 3,
		DialKeepAliveTime: keepaliveTime, DialKeepAliveTimeout: keepaliveTimeout,
		// Windows of a fixed size: gRPC else measures the bandwidth by a ping for nearly each message.
		DialOptions: []grpc.DialOption{grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window)},
	})
	if err != nil {
		return nil, fmt.Errorf("open etcd: %w", err)
	}
	e := &Engine{options: o, keys: keyspace.New(o.Prefix), client: client, closed: make(chan struct{})}
	e.base = time.Now()
	e.mirror = &mirror{client: client, keys: e.keys, options: o}
	e.members = newMembers(o, e.mirror.settled)
	e.mirror.members = e.members
	life, end := context.WithCancel(context.Background())
	e.end, e.question = end, newQuestion(e.newest)
	e.elections.ask = e.question.current
	e.leases = &leases{grant: client.Grant, clock: o.Clock}
	revision, err := e.reach(ctx)
	began := o.Clock.Now()
	if err == nil {
		err = e.mirror.open(ctx, revision)
	}
	if err != nil {
		end()
		e.members.close()
		return nil, errors.Join(fmt.Errorf("open etcd at %s: %w", strings.Join(o.Servers, ","), err), client.Close())
	}
	e.backups = backups{client: client, keys: e.keys, clock: o.Clock, mirror: e.mirror, fresh: e.fresh, began: began, first: revision}
	e.owned.Go(func() { e.question.run(life) })
	e.owned.Go(func() { e.mirror.follow(life) })
	if err := e.mirror.await(ctx, revision, e.closed); err != nil {
		return nil, errors.Join(fmt.Errorf("read etcd at %s: %w", strings.Join(o.Servers, ","), err), e.Close())
	}
	if e.mirror.db.Size().Keys == 0 {
		warnOfOthers(ctx, e)
	}
	return e, nil
}

// warnOfOthers warns if etcd has keys, but none of this engine's: its prefix may be mistaken.
func warnOfOthers(ctx context.Context, e *Engine) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	found, err := e.client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly(), clientv3.WithLimit(2))
	if err != nil {
		return
	}
	for _, kv := range found.Kvs {
		if string(kv.Key) != compactKey {
			e.options.Logger.Warn("Began a new cluster in etcd, beside keys of other prefixes: --etcd-prefix must name theirs if that is not meant",
				"prefix", e.options.Prefix, "found", string(kv.Key))
			return
		}
	}
}

// reach asks for the revision until a member answers.
func (e *Engine) reach(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, e.options.OpenTime)
	defer cancel()
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		revision, err := e.newest(ctx)
		if err == nil {
			return revision, nil
		}
		if final(err) {
			return 0, err
		}
		reason, refused := diagnose(context.WithoutCancel(ctx), e.options.Servers, e.options.TLS)
		if reason != nil {
			err = reason
		}
		if refused || !pause(ctx, wait) {
			return 0, err
		}
	}
}

// newest returns etcd's revision, which is no older than any commit acknowledged before the call.
func (e *Engine) newest(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, err := e.members.get(ctx)
	if err != nil {
		return 0, err
	}
	response := &pb.RangeResponse{}
	request := &pb.RangeRequest{Key: []byte(e.keys.Any()), CountOnly: true}
	if err := ask(ctx, conn, rangePath, request, &decoded{message: response}); err != nil {
		e.members.leave(conn, err)
		return 0, translate(err)
	}
	e.elections.saw(response.Header.GetRaftTerm())
	return response.Header.GetRevision(), nil
}

// fresh returns when the mirror has everything that was committed before the call, or before the lag that ctx allows.
func (e *Engine) fresh(ctx context.Context) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	if store.LagAllowed(ctx) && e.within(store.MostLag) {
		return nil
	}
	begun := e.now()
	revision, err := e.question.current(ctx)
	if err != nil {
		return err
	}
	if err := e.mirror.await(ctx, revision, e.closed); err != nil {
		return err
	}
	e.confirm(begun)
	return nil
}

func (e *Engine) usable(ctx context.Context) error {
	select {
	case <-e.mirror.db.Closed():
		return store.ErrClosed
	default:
		return ctx.Err()
	}
}

// Get implements [store.Engine].
func (e *Engine) Get(ctx context.Context, key string) (*store.Record, int64, error) {
	if err := e.fresh(ctx); err != nil {
		return nil, 0, err
	}
	return e.mirror.db.Get(ctx, key)
}

// Range implements [store.Engine].
func (e *Engine) Range(ctx context.Context, r store.Range) (store.Page, error) {
	// A revision that the mirror has reached needs no question, and one that it has not reached may be etcd's newest.
	if r.Revision == 0 || r.Revision > e.mirror.db.Revision() {
		if err := e.fresh(ctx); err != nil {
			return store.Page{}, err
		}
	}
	return e.mirror.db.Range(ctx, r)
}

// Watch implements [store.Engine].
func (e *Engine) Watch(ctx context.Context, prefix string, after int64) (store.Watcher, error) {
	if after > e.mirror.db.Revision() { // a client may have read it from another server
		if err := e.fresh(ctx); err != nil {
			return nil, err
		}
	}
	w, err := e.mirror.db.Watch(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Revision implements [store.Engine]. It is the mirror's: commits of other servers may be newer.
func (e *Engine) Revision() int64 { return e.mirror.db.Revision() }

// Compacted implements [store.Engine].
func (e *Engine) Compacted() int64 { return e.mirror.db.Compacted() }

// Size implements [store.Sizer].
func (e *Engine) Size() store.Size { return e.mirror.db.Size() }

// Bookmark implements [store.Bookmarker].
func (e *Engine) Bookmark() { e.mirror.db.Bookmark() }

// Probe implements [store.Prober].
func (e *Engine) Probe(ctx context.Context) error {
	err := e.fresh(ctx)
	if err == nil || errors.Is(err, store.ErrClosed) {
		return err
	}
	return e.mirror.explain(err)
}

func (e *Engine) isClosed() bool {
	select {
	case <-e.closed:
		return true
	default:
		return false
	}
}

// Close implements [store.Engine].
func (e *Engine) Close() error {
	e.closing.Lock()
	if e.isClosed() {
		e.closing.Unlock()
		return nil
	}
	close(e.closed)
	e.closing.Unlock()
	e.commits.Wait() // none waits for longer than one attempt
	e.end()
	e.owned.Wait()
	e.members.close()
	e.mirror.close()
	if err := e.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close etcd: %w", err)
	}
	return nil
}
