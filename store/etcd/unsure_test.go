// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"errors"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
	"github.com/mortise-dev/mortise/store/mvcc"
)

// TestUnsureDelete: a delete was sent, and again since the first had no answer. Unless the object is the one that was to be deleted, it is
// unknown which of them deleted it, and no caller may take that for a conflict, after which it would try again.
func TestUnsureDelete(t *testing.T) {
	e := &Engine{keys: keyspace.New("/registry"), closed: make(chan struct{})}
	e.mirror = &mirror{keys: e.keys, db: mvcc.New(0, mvcc.Options{})}
	ops := []store.Op{{Key: "/registry/secrets/default/a", Expect: 7}}
	for name, c := range map[string]struct {
		found *mvccpb.KeyValue
		sure  bool
	}{
		"gone":          {},
		"created anew":  {found: &mvccpb.KeyValue{Key: []byte(ops[0].Key), CreateRevision: 9, ModRevision: 9}},
		"only modified": {found: &mvccpb.KeyValue{Key: []byte(ops[0].Key), CreateRevision: 5, ModRevision: 9}, sure: true},
	} {
		answer := &pb.RangeResponse{}
		if c.found != nil {
			answer.Kvs = []*mvccpb.KeyValue{c.found}
		}
		response := &pb.TxnResponse{Header: &pb.ResponseHeader{}, Responses: []*pb.ResponseOp{
			{Response: &pb.ResponseOp_ResponseRange{ResponseRange: answer}},
		}}
		writes := e.mirror.writes.begin(ops)
		_, _, err := e.conflict(t.Context(), ops, writes, response, true)
		e.mirror.writes.end(writes)
		var conflict *store.ConflictError
		if errors.As(err, &conflict) != c.sure || errors.Is(err, store.ErrUnknown) == c.sure {
			t.Errorf("%s: %v", name, err)
		}
	}
}
