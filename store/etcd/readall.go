// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store/etcd/keyspace"
)

// readPage is how many keys are read in one call.
const readPage = 5000

// reader reads all keys of a revision.
type reader struct {
	client   *clientv3.Client
	from, to string // what is left
	revision int64
	take     func(*mvccpb.KeyValue) error
	stopped  error // by take
}

// readAll calls f with each key and value of a revision, in key order, until f returns an error.
func readAll(ctx context.Context, client *clientv3.Client, keys keyspace.Keyspace, revision int64, f func(*mvccpb.KeyValue) error) error {
	r := &reader{client: client, from: keys.First(), to: keys.End(), revision: revision, take: f}
	if err := r.pages(ctx); err != nil {
		return fmt.Errorf("read keys at revision %d: %w", revision, err)
	}
	return r.stopped
}

// pages reads what is left by as many calls as that takes.
func (r *reader) pages(ctx context.Context) error {
	for {
		page, err := r.client.Get(ctx, r.from, clientv3.WithRange(r.to), clientv3.WithRev(r.revision), clientv3.WithLimit(readPage),
			clientv3.WithSort(clientv3.SortByKey, clientv3.SortAscend))
		if err != nil {
			return translate(err)
		}
		if r.add(page.Kvs); r.stopped != nil || !page.More || len(page.Kvs) == 0 {
			return nil
		}
	}
}

// add takes keys and values.
func (r *reader) add(kvs []*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if r.stopped = r.take(kv); r.stopped != nil {
			return
		}
		r.from = string(kv.Key) + "\x00"
	}
}
