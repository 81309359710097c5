// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// kv is the service KV.
type kv struct {
	pb.UnimplementedKVServer
	*backend
}

// Range implements [pb.KVServer].
func (s *kv) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	out, at, err := s.rangeAt(ctx, r, max(r.Revision, 0))
	if err != nil {
		return nil, translate(err)
	}
	out.Header = s.header(max(at, s.engine.Revision()))
	if r.Revision <= 0 {
		out.Header.Revision = at
	}
	return out, nil
}

func checkRange(r *pb.RangeRequest) error {
	if len(r.Key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

// rangeAt answers a request at a revision, 0 for the newest, and returns the revision of the answer.
func (b *backend) rangeAt(ctx context.Context, r *pb.RangeRequest, revision int64) (*pb.RangeResponse, int64, error) {
	sorts := r.SortOrder != pb.RangeRequest_NONE // without, etcd sorts by another target only what the limit has left
	filters := r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
	limit := 0
	switch {
	case r.CountOnly:
		limit = 1
	case !sorts && !filters && r.Limit > 0 && r.Limit < math.MaxInt32:
		limit = int(r.Limit) + 1 // one more tells that there are more
	}
	got, err := b.read(ctx, newInterval(r.Key, r.RangeEnd), revision, limit)
	if err != nil {
		return nil, 0, err
	}
	out := &pb.RangeResponse{Count: got.count}
	if r.CountOnly {
		return out, got.revision, nil
	}
	for _, record := range got.records {
		if k := b.keyValue(record); selected(r, k) {
			out.Kvs = append(out.Kvs, k)
		}
	}
	if sorts || r.SortTarget != pb.RangeRequest_KEY {
		sortKeys(r, out.Kvs)
	}
	if r.Limit > 0 && int64(len(out.Kvs)) > r.Limit {
		out.Kvs, out.More = out.Kvs[:r.Limit], true
	}
	if r.KeysOnly {
		for _, k := range out.Kvs {
			k.Value = nil // of a copy
		}
	}
	return out, got.revision, nil
}

// selected reports whether a key passes the request's bounds of revisions.
func selected(r *pb.RangeRequest, k *mvccpb.KeyValue) bool {
	return (r.MinModRevision == 0 || k.ModRevision >= r.MinModRevision) && (r.MaxModRevision == 0 || k.ModRevision <= r.MaxModRevision) &&
		(r.MinCreateRevision == 0 || k.CreateRevision >= r.MinCreateRevision) &&
		(r.MaxCreateRevision == 0 || k.CreateRevision <= r.MaxCreateRevision)
}

// sortKeys sorts as a request wants; without an order, ascending.
func sortKeys(r *pb.RangeRequest, all []*mvccpb.KeyValue) {
	compare := func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) }
	switch r.SortTarget {
	case pb.RangeRequest_VERSION:
		compare = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case pb.RangeRequest_CREATE:
		compare = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case pb.RangeRequest_MOD:
		compare = func(a, b *mvccpb.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case pb.RangeRequest_VALUE:
		compare = func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	}
	if r.SortOrder == pb.RangeRequest_DESCEND {
		ascending := compare
		compare = func(a, b *mvccpb.KeyValue) int { return ascending(b, a) }
	}
	slices.SortStableFunc(all, compare)
}

// Put implements [pb.KVServer].
func (s *kv) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	got, err := s.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestPut{RequestPut: r}}}})
	if err != nil {
		return nil, err
	}
	out := got.Responses[0].GetResponsePut()
	out.Header = got.Header
	return out, nil
}

// DeleteRange implements [pb.KVServer].
func (s *kv) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	got, err := s.Txn(ctx, &pb.TxnRequest{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}}}})
	if err != nil {
		return nil, err
	}
	out := got.Responses[0].GetResponseDeleteRange()
	out.Header = got.Header
	return out, nil
}

// Compact implements [pb.KVServer].
func (s *kv) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if c := s.engine.Compacted(); r.Revision < 0 || r.Revision <= c && c > 1 {
		return nil, rpctypes.ErrGRPCCompacted
	}
	if r.Revision > s.engine.Revision() {
		return nil, rpctypes.ErrGRPCFutureRev
	}
	if err := s.engine.Compact(ctx, r.Revision); err != nil {
		return nil, translate(err)
	}
	return &pb.CompactionResponse{Header: s.header(s.engine.Revision())}, nil
}
