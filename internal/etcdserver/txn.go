// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/mortise-dev/mortise/store"
)

// maxOps is the number of operations and of comparisons in a transaction, etcd's default.
const maxOps = 128

// Txn implements [pb.KVServer]. It reads the keys that it compares and writes at one revision, and commits under the condition that those
// that it writes have not changed since; if one has, it begins again.
func (s *kv) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r); err != nil {
		return nil, err
	}
	for {
		out, err := s.try(ctx, r)
		var conflict *store.ConflictError
		if errors.As(err, &conflict) && ctx.Err() == nil {
			continue // another write has come between, so that something has gone on
		}
		return out, translate(err)
	}
}

// checkTxn refuses transactions that no state could satisfy, and those beyond the limits.
func checkTxn(r *pb.TxnRequest) error {
	if len(r.Compare) > maxOps || len(r.Success) > maxOps || len(r.Failure) > maxOps {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
		if len(c.RangeEnd) > 0 {
			return beyond("comparisons of ranges of keys")
		}
	}
	for _, branch := range [][]*pb.RequestOp{r.Success, r.Failure} {
		if err := checkBranch(branch, r.Compare); err != nil {
			return err
		}
	}
	return nil
}

// checkBranch checks the operations that a transaction carries out if its comparisons hold, or those if they do not.
func checkBranch(ops []*pb.RequestOp, compares []*pb.Compare) error {
	puts, writes := map[string]bool{}, []interval(nil)
	for _, op := range ops {
		switch u := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			if err := checkRange(u.RequestRange); err != nil {
				return err
			}
		case *pb.RequestOp_RequestPut:
			key, err := checkPut(u.RequestPut)
			if err != nil {
				return err
			}
			if puts[key] {
				return rpctypes.ErrGRPCDuplicateKey
			}
			puts[key] = true
			writes = append(writes, interval{from: key, single: true})
		case *pb.RequestOp_RequestDeleteRange:
			if len(u.RequestDeleteRange.Key) == 0 {
				return rpctypes.ErrGRPCEmptyKey
			}
			writes = append(writes, newInterval(u.RequestDeleteRange.Key, u.RequestDeleteRange.RangeEnd))
		case *pb.RequestOp_RequestTxn:
			return beyond("transactions in transactions")
		default:
			return rpctypes.ErrGRPCKeyNotFound // etcd's answer to an empty operation
		}
	}
	if err := overlaps(ops, puts); err != nil || len(writes) == 0 {
		return err
	}
	for _, c := range compares {
		written := false
		for _, w := range writes {
			written = written || w.has(inner(c.Key))
		}
		if !written {
			return beyond("a transaction that writes compares only keys that it writes")
		}
	}
	return checkOrder(ops)
}

// overlaps refuses puts of keys that the same transaction deletes.
func overlaps(ops []*pb.RequestOp, puts map[string]bool) error {
	for _, op := range ops {
		d := op.GetRequestDeleteRange()
		if d == nil {
			continue
		}
		deleted := newInterval(d.Key, d.RangeEnd)
		for key := range puts {
			if deleted.has(key) {
				return rpctypes.ErrGRPCDuplicateKey
			}
		}
	}
	return nil
}

// checkOrder refuses reads between writes.
func checkOrder(ops []*pb.RequestOp) error {
	state := 0 // 1: a write was there, 2: a read after it
	for _, op := range ops {
		reads := op.GetRequestRange() != nil
		switch {
		case !reads && state == 2:
			return beyond("a transaction that writes reads only before or after all of its writes")
		case !reads:
			state = 1
		case state == 1:
			state = 2
		}
	}
	return nil
}

func checkPut(r *pb.PutRequest) (string, error) {
	switch key, err := writable(r.Key); {
	case err != nil:
		return "", err
	case r.IgnoreValue && len(r.Value) != 0:
		return "", rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return "", rpctypes.ErrGRPCLeaseProvided
	default:
		return key, nil
	}
}

// attempt is one attempt of a transaction: what it has read, at one revision.
type attempt struct {
	*backend
	revision int64 // 0 until the first read
	read     map[string]*store.Record
	ops      []store.Op
	puts     []*put // beside each op; nil for deletes
	records  []*store.Record
}

// put is what is known of a put before it is committed.
type put struct {
	version int64
	lease   int64
}

// get returns a key's record at the attempt's revision, nil if there is none.
func (a *attempt) get(ctx context.Context, key string) (*store.Record, error) {
	if r, ok := a.read[key]; ok {
		return r, nil
	}
	got, err := a.readOne(ctx, key, a.revision)
	if err != nil {
		return nil, err
	}
	a.revision = got.revision
	var r *store.Record
	if len(got.records) > 0 {
		r = got.records[0]
	}
	a.read[key] = r
	return r, nil
}

// try carries out a transaction. The error is a [*store.ConflictError] if a key has changed meanwhile.
func (s *kv) try(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	a := &attempt{backend: s.backend, read: map[string]*store.Record{}}
	out := &pb.TxnResponse{Succeeded: true}
	for _, c := range r.Compare {
		record, err := a.get(ctx, inner(c.Key))
		if err != nil {
			return nil, err
		}
		out.Succeeded = out.Succeeded && a.holds(c, record)
	}
	ops := r.Success
	if !out.Succeeded {
		ops = r.Failure
	}
	if a.revision == 0 {
		a.revision = s.engine.Revision()
	}
	for _, op := range ops {
		response, err := a.stage(ctx, op)
		if err != nil {
			return nil, err
		}
		out.Responses = append(out.Responses, response)
	}
	before, after, err := a.commit(ctx)
	if err != nil {
		return nil, err
	}
	at := before // as far as the operations have come
	for i, op := range ops {
		if op.GetRequestRange() == nil {
			a.record(after)
		}
		switch u := out.Responses[i].GetResponse().(type) {
		case *pb.ResponseOp_ResponsePut:
			at = after
			u.ResponsePut.Header = &pb.ResponseHeader{Revision: at}
		case *pb.ResponseOp_ResponseDeleteRange:
			if u.ResponseDeleteRange.Deleted > 0 {
				at = after
			}
			u.ResponseDeleteRange.Header = &pb.ResponseHeader{Revision: at}
		default:
			got, err := s.rangeIn(ctx, op.GetRequestRange(), at)
			if err != nil {
				return nil, err
			}
			out.Responses[i] = &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: got}}
		}
	}
	out.Header = s.header(after)
	return out, nil
}

// rangeIn answers a read in a transaction that has come to a revision.
func (s *kv) rangeIn(ctx context.Context, r *pb.RangeRequest, at int64) (*pb.RangeResponse, error) {
	revision := at
	if r.Revision > 0 {
		revision = r.Revision
	}
	got, _, err := s.rangeAt(ctx, r, revision)
	if err != nil {
		return nil, err
	}
	got.Header = &pb.ResponseHeader{Revision: at}
	return got, nil
}

// commit commits what is staged. It returns the revision before that and its own; both are that of the reads if nothing is.
func (a *attempt) commit(ctx context.Context) (before, after int64, err error) {
	if len(a.ops) == 0 {
		return a.revision, a.revision, nil
	}
	after, records, err := a.engine.Commit(ctx, a.ops...)
	if err != nil {
		return 0, 0, err
	}
	a.records = records
	return after - 1, after, nil
}

// record records the versions and leases of what was committed; reads before the writes do not know of it.
func (a *attempt) record(after int64) {
	for i, p := range a.puts {
		if p == nil {
			a.attach(a.ops[i].Key, 0, after)
			continue
		}
		a.wrote(a.records[i], p.version)
		a.attach(a.ops[i].Key, p.lease, after)
	}
	a.puts = nil
}

// stage adds an operation's writes, and returns its response as far as it is known; a read has none yet.
func (a *attempt) stage(ctx context.Context, op *pb.RequestOp) (*pb.ResponseOp, error) {
	switch u := op.Request.(type) {
	case *pb.RequestOp_RequestPut:
		response, err := a.stagePut(ctx, u.RequestPut)
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: response}}, err
	case *pb.RequestOp_RequestDeleteRange:
		response, err := a.stageDelete(ctx, u.RequestDeleteRange)
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: response}}, err
	}
	return nil, nil
}

func (a *attempt) stagePut(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	key := inner(r.Key)
	had, err := a.get(ctx, key)
	if err != nil {
		return nil, err
	}
	if had == nil && (r.IgnoreValue || r.IgnoreLease) {
		return nil, rpctypes.ErrGRPCKeyNotFound
	}
	op, p := store.Op{Key: key, Value: r.Value}, &put{version: 1, lease: r.Lease}
	if op.Value == nil {
		op.Value = []byte{}
	}
	if had != nil {
		op.Expect, p.version = had.Revision, a.version(had)+1
	}
	if r.IgnoreValue {
		op.Value = had.Value
	}
	switch {
	case r.IgnoreLease:
		p.lease = a.leaseOf(had)
		if !had.Expires.IsZero() {
			op.TTL = max(had.Expires.Sub(a.now()), time.Millisecond)
		}
	case r.Lease != 0:
		if op.TTL, err = a.remaining(r.Lease); err != nil {
			return nil, err
		}
	}
	a.ops, a.puts = append(a.ops, op), append(a.puts, p)
	out := &pb.PutResponse{}
	if r.PrevKv && had != nil {
		out.PrevKv = a.keyValue(had)
	}
	return out, nil
}

func (a *attempt) stageDelete(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	i := newInterval(r.Key, r.RangeEnd)
	var all []*store.Record
	if i.single {
		record, err := a.get(ctx, i.from)
		if err != nil {
			return nil, err
		}
		if record != nil {
			all = append(all, record)
		}
	} else {
		got, err := a.backend.read(ctx, i, a.revision, 0)
		if err != nil {
			return nil, err
		}
		all = got.records
	}
	out := &pb.DeleteRangeResponse{Deleted: int64(len(all))}
	for _, record := range all {
		if r.PrevKv {
			out.PrevKvs = append(out.PrevKvs, a.keyValue(record))
		}
		if !a.staged(record.Key) { // ranges may overlap
			a.ops, a.puts = append(a.ops, store.Op{Key: record.Key, Expect: record.Revision}), append(a.puts, nil)
		}
	}
	return out, nil
}

func (a *attempt) staged(key string) bool {
	for _, op := range a.ops {
		if op.Key == key {
			return true
		}
	}
	return false
}

// holds reports whether a comparison holds of a record, nil for a key that does not exist.
func (b *backend) holds(c *pb.Compare, record *store.Record) bool {
	k := &mvccpb.KeyValue{}
	if record != nil {
		k = b.keyValue(record)
	} else if c.Target == pb.Compare_VALUE {
		return false // as etcd: nothing is no value
	}
	var result int
	switch c.Target {
	case pb.Compare_VALUE:
		result = bytes.Compare(k.Value, c.GetValue())
	case pb.Compare_CREATE:
		result = cmp.Compare(k.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		result = cmp.Compare(k.ModRevision, c.GetModRevision())
	case pb.Compare_VERSION:
		result = cmp.Compare(k.Version, c.GetVersion())
	case pb.Compare_LEASE:
		result = cmp.Compare(k.Lease, c.GetLease())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return result == 0
	case pb.Compare_NOT_EQUAL:
		return result != 0
	case pb.Compare_GREATER:
		return result > 0
	case pb.Compare_LESS:
		return result < 0
	}
	return true
}
