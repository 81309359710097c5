// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/mvcc"
)

// backups write what etcd has at a revision, in the format of [local.Restore].
type backups struct {
	client *clientv3.Client
	keys   keyspace.Keyspace
	clock  alarm.Clock
	mirror *mirror
	fresh  func(ctx context.Context) error // returns when the mirror is up to date

	// The time at the start, and the newest revision then.
	began time.Time
	first int64
}

// Backup implements [store.Backuper]: it reads etcd while this and other servers use it.
func (b *backups) Backup(ctx context.Context, w io.Writer) (int64, error) {
	return b.BackupAt(ctx, w, store.Point{})
}

// BackupAt implements [store.RevisionBackuper]. Any revision that etcd has not compacted can be named.
func (b *backups) BackupAt(ctx context.Context, w io.Writer, state store.Point) (int64, error) {
	if err := b.fresh(ctx); err != nil {
		return 0, fmt.Errorf("back up etcd: %w", err)
	}
	newest, revision := b.mirror.db.Revision(), state.Revision
	var err error
	switch {
	case revision > newest:
		err = fmt.Errorf("the store is at revision %d: %w", newest, store.ErrFuture)
	case state == (store.Point{}):
		revision = newest
	case revision == 0:
		revision, err = b.RevisionAt(state.Time)
	}
	if err == nil {
		err = local.WriteBackup(ctx, w, revision, b.records(ctx, revision), local.Options{Clock: b.clock})
	}
	if errors.Is(err, store.ErrCompacted) {
		if begin, other := b.mirror.compacted(ctx); other == nil {
			err = fmt.Errorf("the history begins at revision %d: %w", begin, err)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("back up etcd: %w", err)
	}
	return revision, nil
}

// RevisionAt implements [store.History]. etcd does not tell when its revisions were: the engine knows only those that it has seen come,
// by its own clock.
func (b *backups) RevisionAt(at time.Time) (int64, error) {
	if at.Before(b.began) {
		return 0, fmt.Errorf("revision at %s, which is before this server has begun to follow etcd at %s: %w",
			at.Format(time.RFC3339), b.began.Format(time.RFC3339), store.ErrCompacted)
	}
	revision, err := mvcc.RevisionAt(b.mirror.db, at, b.clock.Now())
	if err != nil {
		return 0, err
	}
	return max(revision, b.first), nil // the mirror has read the history before it at once
}

// records reads the keys at a revision from etcd, in key order. It ends with the first error.
func (b *backups) records(ctx context.Context, revision int64) iter.Seq2[*store.Record, error] {
	return func(yield func(*store.Record, error) bool) {
		ends := map[int64]time.Time{} // of leases
		err := readAll(ctx, b.client, b.keys, revision, func(kv *mvccpb.KeyValue) error {
			r := b.mirror.record(kv)
			if kv.Lease != 0 {
				end, ok := ends[kv.Lease]
				if !ok {
					var err error
					if end, err = b.leaseEnd(ctx, kv.Lease); err != nil {
						return err
					}
					ends[kv.Lease] = end
				}
				r = &store.Record{Key: r.Key, Value: r.Value, Revision: r.Revision, Created: r.Created, Expires: end}
			}
			if !yield(r, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(nil, err)
		}
	}
}

// errEnough ends the reading of records when its caller wants no more.
var errEnough = errors.New("enough records")

// leaseEnd returns when a lease ends, which is now if it has ended.
func (b *backups) leaseEnd(ctx context.Context, id int64) (time.Time, error) {
	response, err := b.client.TimeToLive(ctx, clientv3.LeaseID(id))
	if err != nil {
		return time.Time{}, fmt.Errorf("read lease %x: %w", id, translate(err))
	}
	return b.clock.Now().Add(time.Duration(max(response.TTL, 0)) * time.Second), nil
}
