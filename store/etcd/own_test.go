// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
	"github.com/mortise-dev/mortise/store/mvcc"
)

// cluster is etcd's history in a test: what the watch tells, and what answers to the engine's own transactions say.
type cluster struct {
	events map[int64][]*mvccpb.Event
	at     map[string]*mvccpb.KeyValue
	head   int64
}

// change carries out ops in the next revision, if they change anything, and returns the answer.
func (c *cluster) change(ops []store.Op) *pb.TxnResponse {
	response := &pb.TxnResponse{Succeeded: true}
	var reads []*pb.ResponseOp
	var events []*mvccpb.Event
	revision := c.head + 1
	for _, op := range ops {
		old := c.at[op.Key]
		if op.Value == nil {
			deleted := &pb.DeleteRangeResponse{}
			if old != nil {
				deleted.Deleted = 1
				delete(c.at, op.Key)
				events = append(events, &mvccpb.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(op.Key), ModRevision: revision}})
			}
			response.Responses = append(response.Responses, &pb.ResponseOp{
				Response: &pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: deleted}})
			continue
		}
		kv := &mvccpb.KeyValue{Key: []byte(op.Key), Value: op.Value, ModRevision: revision, CreateRevision: revision}
		if old != nil {
			kv.CreateRevision = old.CreateRevision
		}
		c.at[op.Key] = kv
		events = append(events, &mvccpb.Event{Kv: kv})
		response.Responses = append(response.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}})
		reads = append(reads, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: &pb.RangeResponse{
			Kvs: []*mvccpb.KeyValue{{Key: kv.Key, ModRevision: revision, CreateRevision: kv.CreateRevision}}}}})
	}
	if len(events) > 0 {
		c.head = revision
		c.events[revision] = events
	}
	response.Responses = append(response.Responses, reads...)
	response.Header = &pb.ResponseHeader{Revision: c.head}
	return response
}

// TestOwnAnswers: in whatever order the answers to the engine's own transactions arrive, before, between and after what the watch tells, in
// parts or whole, late or never: watchers get each change once, in order, and the mirror has what etcd has.
func TestOwnAnswers(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 26))
		etcd := &cluster{events: map[int64][]*mvccpb.Event{}, at: map[string]*mvccpb.KeyValue{}, head: 1}
		m := &mirror{keys: keyspace.New(keyspace.DefaultPrefix), options: Options{}.withDefaults()}
		m.db = mvcc.New(1, m.options.Options)
		m.bookmark = alarm.New(alarm.System{}, func() {})
		w := &watching{mirror: m}
		m.source = w
		watcher, err := m.db.Watch(t.Context(), keyspace.Root, 1)
		if err != nil {
			t.Fatal(err)
		}
		type answered struct {
			writes   []*write
			response *pb.TxnResponse
		}
		var answers []answered
		told := etcd.head
		tell := func() { // what the watch has not told
			if told == etcd.head {
				return
			}
			until := told + 1 + random.Int64N(etcd.head-told)
			header := &pb.ResponseHeader{Revision: until + random.Int64N(etcd.head-until+1)}
			var parts []*pb.WatchResponse
			part := &pb.WatchResponse{Header: header}
			for r := told + 1; r <= until; r++ {
				for _, e := range etcd.events[r] {
					if part.Events = append(part.Events, e); random.IntN(4) == 0 {
						parts, part = append(parts, part), &pb.WatchResponse{Header: header}
					}
				}
			}
			parts = append(parts, part)
			if len(parts) > 1 && len(part.Events) == 0 {
				parts = parts[:len(parts)-1]
			}
			for i, p := range parts {
				p.Fragment = i < len(parts)-1
				receive(t, w, p)
				if p.Fragment && random.IntN(3) == 0 && len(answers) > 0 { // another connection's
					m.committed(answers[0].writes, answers[0].response)
					m.settled()
				}
			}
			if told = until; random.IntN(3) == 0 && told == etcd.head {
				receive(t, w, &pb.WatchResponse{Header: &pb.ResponseHeader{Revision: told}, WatchId: -1})
			}
		}
		for n := range 60 {
			ops := make([]store.Op, 1+random.IntN(3))
			for i := range ops {
				ops[i] = store.Op{Key: fmt.Sprintf("/registry/k%d", (random.IntN(3)*3+i)%9), Expect: store.Any}
				if random.IntN(3) > 0 {
					ops[i].Value = fmt.Append(nil, "v", n%5)
				}
			}
			if ops = distinct(ops); random.IntN(3) == 0 {
				etcd.change(ops) // another server's
			} else {
				writes := m.writes.begin(ops)
				answers = append(answers, answered{writes, etcd.change(ops)})
			}
			for random.IntN(3) == 0 && len(answers) > 0 {
				i := random.IntN(len(answers))
				a := answers[i]
				answers = append(answers[:i], answers[i+1:]...)
				if random.IntN(5) > 0 { // else it is lost
					m.committed(a.writes, a.response)
				}
				m.writes.end(a.writes)
			}
			if random.IntN(3) == 0 {
				tell()
			}
			if random.IntN(2) == 0 {
				m.settled()
			}
		}
		for told < etcd.head {
			tell()
		}
		m.settled()
		if m.db.Revision() != etcd.head {
			t.Fatalf("seed %d: the mirror is at %d, etcd at %d", seed, m.db.Revision(), etcd.head)
		}
		var want, got []string
		for r := int64(2); r <= etcd.head; r++ {
			for _, e := range etcd.events[r] {
				want = append(want, fmt.Sprintf("%d %s=%s created %d", r, e.Kv.Key, e.Kv.Value, e.Kv.CreateRevision))
			}
		}
		for len(got) < len(want) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			batch, err := watcher.Next(ctx)
			cancel()
			if err != nil {
				t.Fatalf("seed %d: %d of %d events: %v", seed, len(got), len(want), err)
			}
			for _, e := range batch.Events {
				var value []byte
				var created int64
				if e.Record != nil {
					value, created = e.Record.Value, e.Record.Created
				}
				got = append(got, fmt.Sprintf("%d %s=%s created %d", e.Revision, e.Key, value, created))
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("seed %d: watchers got\n%q, want\n%q", seed, got, want)
		}
		watcher.Close()
	}
}

func receive(t *testing.T, w *watching, r *pb.WatchResponse) {
	t.Helper()
	b, err := proto.Marshal(r)
	if err == nil {
		err = w.Receive(b)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// distinct returns the ops without those whose key comes twice.
func distinct(ops []store.Op) (once []store.Op) {
	seen := map[string]bool{}
	for _, op := range ops {
		if !seen[op.Key] {
			once = append(once, op)
		}
		seen[op.Key] = true
	}
	return once
}

// TestAnswerAfterCommit: an answer that arrives when the commit has given up tells the mirror what happened, and calls nobody.
func TestAnswerAfterCommit(t *testing.T) {
	m := &mirror{keys: keyspace.New(keyspace.DefaultPrefix), options: Options{}.withDefaults(), db: mvcc.New(1, mvcc.Options{})}
	m.bookmark = alarm.New(alarm.System{}, func() {})
	m.source = &watching{mirror: m}
	etcd := &cluster{events: map[int64][]*mvccpb.Event{}, at: map[string]*mvccpb.KeyValue{}, head: 1}
	ops := []store.Op{{Key: "/registry/a", Value: []byte("x"), Made: func(*store.Record) { t.Error("called after the commit") }}}
	writes := m.writes.begin(ops)
	m.writes.end(writes)
	m.committed(writes, etcd.change(ops))
	m.settled()
	if r, revision, err := m.db.Get(t.Context(), "/registry/a"); err != nil || revision != 2 || string(r.Value) != "x" {
		t.Errorf("%v at %d, %v", r, revision, err)
	}
}

// TestBadAnswers: an answer of another shape than its transaction's, a second one and none are errors, and the outcome is unknown.
func TestBadAnswers(t *testing.T) {
	m := &mirror{db: mvcc.New(1, mvcc.Options{})}
	request := &pb.TxnRequest{Success: []*pb.RequestOp{{}}}
	put := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
	header := &pb.ResponseHeader{Revision: 2}
	for name, answers := range map[string][]*pb.TxnResponse{
		"too few":   {{Header: header, Succeeded: true}},
		"too many":  {{Header: header, Responses: []*pb.ResponseOp{put}}},
		"no header": {{Succeeded: true, Responses: []*pb.ResponseOp{put}}},
		"twice": {
			{Header: header, Succeeded: true, Responses: []*pb.ResponseOp{put}}, {Header: header, Succeeded: true, Responses: []*pb.ResponseOp{put}},
		},
	} {
		to := &committed{mirror: m, request: request}
		var err error
		for _, a := range answers {
			b, _ := proto.Marshal(a)
			err = to.Receive(b)
		}
		if err == nil || !lost(err) || final(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := (&decoded{message: header}).Receive([]byte{0xff}); err == nil || !lost(err) {
		t.Errorf("an answer that is none: %v", err)
	}
}
