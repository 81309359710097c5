// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store"
)

// compactKey has the revision that kube-apiserver compacted to last; its version is the number of compactions.
const compactKey = "compact_rev_key"

// compaction is what this process knows of the shared compactions.
type compaction struct {
	mu       sync.Mutex
	version  int64 // of compactKey
	revision int64 // etcd's, one interval ago
}

// Compact implements [store.Engine].
func (e *Engine) Compact(ctx context.Context, revision int64) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	if revision > e.mirror.db.Revision() {
		if err := e.fresh(ctx); err != nil {
			return err
		}
	}
	if revision > e.mirror.db.Revision() || revision <= e.mirror.db.Compacted() {
		return e.mirror.db.Compact(revision)
	}
	if err := e.compactTo(ctx, revision); err != nil {
		return err
	}
	return e.mirror.db.Compact(revision)
}

// compactTo makes etcd drop its history before a revision. It is no error if etcd has done so.
func (e *Engine) compactTo(ctx context.Context, revision int64) error {
	_, err := e.client.Compact(ctx, revision)
	if err = translate(err); err != nil && !errors.Is(err, store.ErrCompacted) {
		return fmt.Errorf("compact etcd to revision %d: %w", revision, err)
	}
	return nil
}

// CompactShared implements [store.Compactor], with kube-apiserver's protocol: who is the first to raise the version of compactKey
// compacts, and the others take note of the version. The first call of a process that is the first compacts nothing.
func (e *Engine) CompactShared(ctx context.Context) error {
	if err := e.usable(ctx); err != nil {
		return err
	}
	c := &e.compact
	c.mu.Lock()
	defer c.mu.Unlock()
	response, err := e.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactKey), "=", c.version)).
		Then(clientv3.OpPut(compactKey, strconv.FormatInt(c.revision, 10))).
		Else(clientv3.OpGet(compactKey)).Commit()
	before := c.revision
	if err = translate(err); errors.Is(err, store.ErrNoSpace) {
		return compactFull(ctx, e)
	}
	if err != nil {
		return fmt.Errorf("agree on compaction: %w", err)
	}
	c.revision = response.Header.Revision
	if !response.Succeeded {
		to := before
		if found := response.Responses[0].GetResponseRange().GetKvs(); len(found) > 0 {
			c.version = found[0].Version
			if to, err = strconv.ParseInt(string(found[0].Value), 10, 64); err != nil {
				return fmt.Errorf("read %s: %w: %q", compactKey, store.ErrCorrupt, found[0].Value)
			}
		}
		return e.drop(ctx, to)
	}
	c.version++
	if before == 0 {
		return nil
	}
	if err := e.compactTo(ctx, before); err != nil {
		return err
	}
	return e.drop(ctx, before)
}

// compactFull compacts an etcd that is full: it refuses the agreement, which is a write, and needs the compaction most. All servers do so.
// The caller holds the lock of e.compact.
func compactFull(ctx context.Context, e *Engine) error {
	newest, err := e.newest(ctx)
	if err != nil {
		return fmt.Errorf("compact a full etcd: %w", err)
	}
	before := e.compact.revision
	e.compact.revision = newest
	if before == 0 {
		return nil
	}
	if err := e.compactTo(ctx, before); err != nil {
		return err
	}
	return e.drop(ctx, before)
}

// drop drops the mirror's history before a revision of etcd's.
func (e *Engine) drop(ctx context.Context, revision int64) error {
	if err := e.mirror.await(ctx, revision, e.closed); err != nil {
		return err
	}
	return e.mirror.db.Compact(revision)
}
