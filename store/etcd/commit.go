// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
)

// Commit implements [store.Engine].
func (e *Engine) Commit(ctx context.Context, ops ...store.Op) (int64, []*store.Record, error) {
	if err := e.begin(ctx); err != nil {
		return 0, nil, err
	}
	defer e.commits.Done()
	if err := examine(ops, e.keys, e.options.MaxTransaction); err != nil {
		return 0, nil, err
	}
	if len(ops) == 0 {
		if err := e.fresh(ctx); err != nil {
			return 0, nil, err
		}
		return e.mirror.db.Revision(), nil, nil
	}
	begun := e.now()
	writes := e.mirror.writes.begin(ops)
	defer e.mirror.writes.end(writes)
	response, unsure, err := e.transact(ctx, ops, writes)
	// etcd carries out the transaction with which it runs full, and returns the error all the same.
	if errors.Is(err, store.ErrNoSpace) && e.fresh(ctx) == nil {
		if revision := e.mirror.writes.together(writes); revision > 0 {
			return revision, e.mirror.results(writes, revision, nil), nil
		}
	}
	if err != nil {
		return 0, nil, err
	}
	if !response.Succeeded {
		return e.conflict(ctx, ops, writes, response, unsure)
	}
	revision := response.Header.Revision
	// The commit is a fact, whether the mirror has it or not.
	if e.mirror.await(ctx, revision, e.closed) == nil {
		e.confirm(begun)
	}
	return revision, e.mirror.results(writes, revision, response), nil
}

// begin counts a commit, so that Close waits for it.
func (e *Engine) begin(ctx context.Context) error {
	e.closing.Lock()
	defer e.closing.Unlock()
	if e.isClosed() {
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.commits.Add(1)
	return nil
}

// examine refuses ops that no state could satisfy, and more bytes than the most.
func examine(ops []store.Op, keys keyspace.Keyspace, most int64) error {
	var total int64
	seen := make(map[string]struct{}, len(ops))
	for i, op := range ops {
		_, ours := keys.Outer(op.Key)
		_, twice := seen[op.Key]
		switch {
		case op.Key == "":
			return fmt.Errorf("commit op %d: %w: empty key", i, store.ErrInvalid)
		case !ours:
			return fmt.Errorf("commit key %q: %w: not below %s", op.Key, store.ErrInvalid, keyspace.Root)
		case op.Expect < store.Any:
			return fmt.Errorf("commit key %q: %w: expects revision %d", op.Key, store.ErrInvalid, op.Expect)
		case op.TTL < 0 || op.TTL > 0 && op.Value == nil:
			return fmt.Errorf("commit key %q: %w: ttl %v", op.Key, store.ErrInvalid, op.TTL)
		case twice:
			return fmt.Errorf("commit key %q: %w: twice in a transaction", op.Key, store.ErrInvalid)
		}
		seen[op.Key] = struct{}{}
		total += int64(len(op.Key) + len(op.Value))
	}
	if total > most {
		return fmt.Errorf("commit %d bytes, at most %d: %w", total, most, store.ErrTooLarge)
	}
	return nil
}

// transaction translates ops: the success of its conditions makes the changes, their failure reads the keys that have one. A put without a
// condition, whose key's creation the caller cannot know, is followed by a read of the key. The request shares the ops' values, which
// clientv3.OpPut would copy.
func (e *Engine) transaction(ctx context.Context, ops []store.Op) (*pb.TxnRequest, error) {
	t := &pb.TxnRequest{}
	for _, op := range ops {
		outer, _ := e.keys.Outer(op.Key)
		key := []byte(outer)
		if op.Expect != store.Any {
			t.Compare = append(t.Compare, &pb.Compare{Key: key, Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
				TargetUnion: &pb.Compare_ModRevision{ModRevision: op.Expect}})
			t.Failure = append(t.Failure, reading(&pb.RangeRequest{Key: key}))
		}
		if op.Value == nil {
			t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
				RequestDeleteRange: &pb.DeleteRangeRequest{Key: key}}})
			continue
		}
		put := &pb.PutRequest{Key: key, Value: op.Value}
		if op.TTL > 0 {
			id, err := e.leases.get(ctx, op.TTL)
			if err != nil {
				return t, err
			}
			put.Lease = int64(id)
		}
		t.Success = append(t.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: put}})
	}
	for _, op := range ops {
		if op.Value != nil && op.Expect != 0 {
			key, _ := e.keys.Outer(op.Key)
			t.Success = append(t.Success, reading(&pb.RangeRequest{Key: []byte(key), KeysOnly: true}))
		}
	}
	return t, nil
}

func reading(r *pb.RangeRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: r}}
}

// transact sends the transaction until etcd answers. Unsure means that an earlier, unanswered one may have been carried out.
func (e *Engine) transact(ctx context.Context, ops []store.Op, writes []*write) (response *pb.TxnResponse, unsure bool, err error) {
	begun := time.Now()
	life := context.WithoutCancel(ctx) // of the first attempt, which has less time than it takes to settle
	for wait := firstPause; ; wait = min(2*wait, lastPause) {
		if response, err = e.attempt(life, ops, writes); err == nil {
			return response, unsure, nil
		}
		if wait == firstPause {
			var cancel context.CancelFunc
			life, cancel = outlive(ctx, settleTime-time.Since(begun))
			defer cancel()
		}
		if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) { // its keys have expired, by etcd's clock
			e.leases.forget()
			continue
		}
		if final(err) && !unsure {
			return nil, false, err
		}
		unsure = unsure || lost(err)
		if !unsure && ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		if final(err) || e.isClosed() || !pause(life, wait) {
			return nil, unsure, fmt.Errorf("%w: %w", store.ErrUnknown, err)
		}
	}
}

// attempt sends the transaction once.
func (e *Engine) attempt(life context.Context, ops []store.Op, writes []*write) (*pb.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(life, attemptTime)
	defer cancel()
	t, err := e.transaction(ctx, ops)
	if err != nil {
		return nil, err
	}
	conn, err := e.members.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("commit to etcd: %w", err)
	}
	silent, elected := e.members.doubt(conn), e.elections.doubt(ctx, cancel)
	answered, stop := e.overtaking.watch(ctx, cancel, func() { silent(); elected() })
	to := &committed{mirror: e.mirror, writes: writes, request: t}
	if err := ask(ctx, conn, txnPath, t, to); err != nil {
		stop()
		e.members.leave(conn, err)
		return nil, fmt.Errorf("commit to etcd: %w", translate(err))
	}
	answered()
	e.elections.saw(to.response.Header.GetRaftTerm())
	return to.response, nil
}

// outlive returns a context that ends a time after ctx.
func outlive(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(d, cancel)
		context.AfterFunc(life, func() { t.Stop() })
	})
	return life, func() { stop(); cancel() }
}

// conflict finds the op whose condition did not hold. If an earlier transaction of this commit may have been carried out, the mirror shows
// whether it was.
func (e *Engine) conflict(
	ctx context.Context, ops []store.Op, writes []*write, response *pb.TxnResponse, unsure bool,
) (int64, []*store.Record, error) {
	if unsure {
		if err := e.mirror.await(ctx, response.Header.Revision, e.closed); err != nil {
			return 0, nil, fmt.Errorf("%w: %w", store.ErrUnknown, err)
		}
		if revision := e.mirror.writes.together(writes); revision > 0 {
			return revision, e.mirror.results(writes, revision, nil), nil
		}
	}
	deletes := true
	n := 0
	for _, op := range ops {
		deletes = deletes && op.Value == nil
		if op.Expect == store.Any {
			continue
		}
		var current *store.Record
		if found := response.Responses[n].GetResponseRange().GetKvs(); len(found) > 0 {
			current = e.mirror.record(found[0])
		}
		n++
		if current == nil && op.Expect == 0 || current != nil && current.Revision == op.Expect {
			continue
		}
		conflict := &store.ConflictError{Key: op.Key, Expect: op.Expect, Current: current}
		// The object was deleted since, maybe by this commit. The conflict is not wrapped: callers try again after one.
		if unsure && deletes && (current == nil || current.Created > op.Expect) {
			return 0, nil, fmt.Errorf("%w: %v", store.ErrUnknown, conflict)
		}
		return 0, nil, conflict
	}
	return 0, nil, fmt.Errorf("commit to etcd: %w: no condition fails in a failed transaction", store.ErrCorrupt)
}
