// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"slices"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// filled returns a service on a store with some keys and some history.
func filled(t testing.TB) *kv {
	t.Helper()
	engine := memory.Open(memory.Options{})
	t.Cleanup(func() { engine.Close() })
	for _, key := range []string{"a/a", "a/b", "a/bb", "a/c", "aa/a", "b/a", "b/\xff", "b/\xff\xff", "c"} {
		for range 2 {
			if _, _, err := engine.Commit(t.Context(), store.Op{Key: root + key, Value: []byte(key), Expect: store.Any}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &kv{backend: newBackend(engine, time.Now)}
}

// FuzzRange: the keys of an interval are those that a look at each key finds, for any interval, limit and order.
func FuzzRange(f *testing.F) {
	for _, c := range []struct{ from, to string }{
		{"/registry/a/b", ""}, {"/registry/a/", "/registry/a0"}, {"/registry/a/b\x00", "/registry/a0"}, {"/registry/a/b", "/registry/b/a"},
		{"\x00", "\x00"}, {"/registry/b/\xff", "/registry/c"}, {"/registry/aa", "\x00"}, {"/registry/b", "/registry/a"}, {"a", "\xff\xff"},
		{"compact_rev_key", ""}, {"/registry/a/bb", "/registry/a0"},
	} {
		f.Add([]byte(c.from), []byte(c.to), int64(2), true)
	}
	s := filled(f)
	everything, err := s.engine.Range(context.Background(), store.Range{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, from, to []byte, limit int64, past bool) {
		r := &pb.RangeRequest{Key: from, RangeEnd: to, Limit: limit}
		if past {
			r.Revision = everything.Revision
		}
		got, err := s.Range(t.Context(), r)
		if len(from) == 0 {
			if err == nil {
				t.Error("an empty key is accepted")
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, record := range everything.Records {
			if key := string(outer(record.Key)); key == string(from) && len(to) == 0 ||
				len(to) > 0 && key >= string(from) && (string(to) == "\x00" || key < string(to)) {
				want = append(want, key)
			}
		}
		if got.Count != int64(len(want)) {
			t.Errorf("%d keys, want %d", got.Count, len(want))
		}
		more := limit > 0 && limit < int64(len(want))
		if more {
			want = want[:limit]
		}
		var keys []string
		for _, k := range got.Kvs {
			keys = append(keys, string(k.Key))
		}
		if !slices.Equal(keys, want) || got.More != more {
			t.Errorf("%q more %v, want %q %v", keys, got.More, want, more)
		}
	})
}

// FuzzTxn: no request ends the server, keeps it busy, or writes a key that is none of the store's.
func FuzzTxn(f *testing.F) {
	key, end := []byte(root+"a/b"), []byte(root+"c")
	put := &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: key, Value: []byte("v"), PrevKv: true}}}
	read := &pb.RangeRequest{Key: key, RangeEnd: end, SortTarget: pb.RangeRequest_MOD}
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: read}}
	remove := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: key, RangeEnd: end}}}
	compare := &pb.Compare{Key: key, Target: pb.Compare_MOD, Result: pb.Compare_GREATER, TargetUnion: &pb.Compare_ModRevision{ModRevision: 3}}
	for _, r := range []*pb.TxnRequest{
		{Compare: []*pb.Compare{compare}, Success: []*pb.RequestOp{put}, Failure: []*pb.RequestOp{get}},
		{Success: []*pb.RequestOp{get, remove}}, {Success: []*pb.RequestOp{put, remove}}, {Failure: []*pb.RequestOp{{}}},
		{Success: []*pb.RequestOp{{Request: &pb.RequestOp_RequestTxn{RequestTxn: &pb.TxnRequest{}}}}},
	} {
		raw, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var r pb.TxnRequest
		if proto.Unmarshal(raw, &r) != nil {
			return
		}
		s := filled(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		before := s.engine.Revision()
		got, err := s.Txn(ctx, &r)
		if ctx.Err() != nil {
			t.Fatalf("no answer: %v", err)
		}
		if err != nil && s.engine.Revision() != before {
			t.Errorf("refused, and written: %v", err)
		}
		if err == nil && (got.Header.Revision < before || got.Header.Revision > before+1) {
			t.Errorf("revision %d after %d", got.Header.Revision, before)
		}
		all, err := s.engine.Range(t.Context(), store.Range{})
		if err != nil {
			t.Fatal(err)
		}
		for _, record := range all.Records {
			if len(record.Key) <= len(root) || record.Key[:len(root)] != root {
				t.Errorf("key %q is written", record.Key)
			}
		}
	})
}
