// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/mortise-dev/mortise/store/etcd/keyspace"
)

// readPage is how many keys are read in one call of an etcd without streams.
const readPage = 5000

// reader reads all keys of a revision.
type reader struct {
	client   *clientv3.Client
	from, to string // what is left
	revision int64
	take     func(*mvccpb.KeyValue) error
	stopped  error // by take
}

// readAll calls f with each key and value of a revision, in key order, until f returns an error. An etcd of 3.7 or later sends them as one
// stream. An older one sends pages, and so does what is left when a stream breaks off: a page is asked for again, of another member.
func readAll(ctx context.Context, client *clientv3.Client, keys keyspace.Keyspace, revision int64, f func(*mvccpb.KeyValue) error) error {
	r := &reader{client: client, from: keys.First(), to: keys.End(), revision: revision, take: f}
	err := r.stream(ctx)
	if r.stopped == nil && err != nil && ctx.Err() == nil && (code(err) == codes.Unimplemented || !final(err)) {
		err = r.pages(ctx)
	}
	if r.stopped == nil && err != nil {
		return fmt.Errorf("read keys at revision %d: %w", revision, err)
	}
	return r.stopped
}

// stream reads what is left by one call.
func (r *reader) stream(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parts, err := r.client.GetStream(ctx, r.from, clientv3.WithRange(r.to), clientv3.WithRev(r.revision))
	if err != nil {
		return translate(err)
	}
	for part := range parts { // to the end, for the client sends it until then
		if err != nil || r.stopped != nil {
			continue
		}
		if err = translate(part.Err()); err == nil {
			r.add(part.GetKvs())
		}
		if r.stopped != nil {
			cancel()
		}
	}
	return err
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
