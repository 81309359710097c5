// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// FuzzEventsUntil: the revision that is found without decoding is that of the header, of an answer that has events.
func FuzzEventsUntil(f *testing.F) {
	event := &mvccpb.Event{Kv: &mvccpb.KeyValue{Key: []byte("/a"), Value: []byte("x"), ModRevision: 7}}
	header := &pb.ResponseHeader{ClusterId: 1, MemberId: 1 << 63, Revision: 7, RaftTerm: 2}
	for _, r := range []*pb.WatchResponse{
		{Header: header, Events: []*mvccpb.Event{event}}, {Header: header, WatchId: 3, Fragment: true, Events: []*mvccpb.Event{event, event}},
		{Header: header}, {Header: header, Created: true}, {Header: header, Canceled: true, CompactRevision: 9, CancelReason: "x"}, {},
	} {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		until := eventsUntil(b)
		if want := r.Header.GetRevision(); len(r.Events) > 0 && until != want || len(r.Events) == 0 && until != 0 {
			f.Errorf("%v: %d", r, until)
		}
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		eventsUntil(sent)
		r := &pb.WatchResponse{}
		if proto.Unmarshal(sent, r) != nil {
			return
		}
		r.ProtoReflect().SetUnknown(nil)
		b, err := proto.Marshal(r) // as etcd writes it
		if err != nil {
			t.Fatal(err)
		}
		if until := eventsUntil(b); until != 0 && (until != r.Header.GetRevision() || len(r.Events) == 0 || r.Created || r.Canceled) {
			t.Errorf("%v: %d", r, until)
		}
	})
}
