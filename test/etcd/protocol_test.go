// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/internal/etcdserver"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
)

// served serves a store by etcd's protocol on a Unix socket until the test ends, and returns a client of it.
func served(t testing.TB, engine store.Engine) *clientv3.Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "etcd")
	l, err := net.Listen("unix", path)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := etcdserver.New(etcdserver.Options{Engine: engine, Scratch: t.TempDir(), URL: "unix://" + path}).Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
		must(t, engine.Close())
	})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + path}, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

func localStore(t testing.TB) store.Engine {
	t.Helper()
	engine, err := local.Open(t.TempDir(), local.Options{})
	must(t, err)
	return engine
}

// pair is a client of an etcd, and one of a store that is served as one.
type pair struct {
	etcd, mortise *clientv3.Client
	leases        [2][]clientv3.LeaseID
}

// text returns a response as text, without what differs between any two clusters.
func (p *pair) text(m proto.Message) string {
	m = proto.Clone(m)
	clear := func(h *pb.ResponseHeader) {
		if h != nil {
			h.ClusterId, h.MemberId, h.RaftTerm = 0, 0, 0
		}
	}
	kv := func(all ...*mvccpb.KeyValue) {
		for _, k := range all {
			if k != nil && k.Lease != 0 {
				for i, id := range append(slices.Clone(p.leases[0]), p.leases[1]...) {
					if k.Lease == int64(id) {
						k.Lease = int64(i%len(p.leases[0])) + 1
						break
					}
				}
			}
		}
	}
	switch m := m.(type) {
	case *pb.RangeResponse:
		clear(m.Header)
		kv(m.Kvs...)
	case *pb.PutResponse:
		clear(m.Header)
		kv(m.PrevKv)
	case *pb.DeleteRangeResponse:
		clear(m.Header)
		kv(m.PrevKvs...)
	case *pb.CompactionResponse:
		clear(m.Header)
	case *pb.TxnResponse:
		clear(m.Header)
		for _, r := range m.Responses {
			if g := r.GetResponseRange(); g != nil {
				clear(g.Header)
				kv(g.Kvs...)
			}
			if g := r.GetResponsePut(); g != nil {
				kv(g.PrevKv)
			}
			if g := r.GetResponseDeleteRange(); g != nil {
				kv(g.PrevKvs...)
			}
		}
	}
	return strings.ReplaceAll(prototext.MarshalOptions{}.Format(m), "  ", " ")
}

// keyOf returns one of a few keys.
func keyOf(r *rand.Rand) string {
	return fmt.Sprintf("/registry/%s/%c", []string{"a", "aa", "b"}[r.IntN(3)], 'a'+rune(r.IntN(4)))
}

// question is a request, and how to send it to a client.
type question struct {
	what string
	send func(c *clientv3.Client, which int) (proto.Message, error)
}

// ask draws a request.
func (p *pair) ask(r *rand.Rand, now int64) question {
	ctx := context.Background()
	key := keyOf(r)
	switch r.IntN(10) {
	case 0, 1, 2:
		op, what := p.drawGet(r, now)
		return question{what, func(c *clientv3.Client, _ int) (proto.Message, error) {
			got, err := c.Do(ctx, op)
			if op.Rev() > 0 && err == nil { // of older revisions, Mortise knows neither leases nor how often a key was written
				for _, k := range got.Get().Kvs {
					k.Lease, k.Version = 0, 0
				}
			}
			return (*pb.RangeResponse)(got.Get()), err
		}}
	case 3, 4, 5:
		value, previous, lease := fmt.Sprint(r.IntN(5)), r.IntN(2) == 0, -1
		if len(p.leases[0]) > 0 && r.IntN(3) == 0 {
			lease = r.IntN(len(p.leases[0]))
		}
		return question{fmt.Sprintf("put %s %s %v %d", key, value, previous, lease), func(c *clientv3.Client, which int) (proto.Message, error) {
			got, err := c.Do(ctx, p.put(key, value, previous, lease, which))
			return (*pb.PutResponse)(got.Put()), err
		}}
	case 6:
		options, what := []clientv3.OpOption{}, "delete "+key
		if r.IntN(3) == 0 {
			options, what = append(options, clientv3.WithPrefix()), what+" prefix"
			key = key[:len(key)-r.IntN(3)]
		}
		if r.IntN(2) == 0 {
			options = append(options, clientv3.WithPrevKV())
		}
		return question{what, func(c *clientv3.Client, _ int) (proto.Message, error) {
			got, err := c.Delete(ctx, key, options...)
			return (*pb.DeleteRangeResponse)(got), err
		}}
	case 7, 8:
		return p.drawTxn(r, now)
	}
	at := max(now-int64(r.IntN(40)), 0) + 2
	if r.IntN(4) > 0 {
		at = now + 5 // refused: the history stays
	}
	return question{fmt.Sprint("compact ", at), func(c *clientv3.Client, _ int) (proto.Message, error) {
		got, err := c.Compact(ctx, at)
		return (*pb.CompactionResponse)(got), err
	}}
}

func (p *pair) put(key, value string, previous bool, lease, which int) clientv3.Op {
	var options []clientv3.OpOption
	if previous {
		options = append(options, clientv3.WithPrevKV())
	}
	if lease >= 0 {
		options = append(options, clientv3.WithLease(p.leases[which][lease]))
	}
	return clientv3.OpPut(key, value, options...)
}

// drawGet draws a read.
func (p *pair) drawGet(r *rand.Rand, now int64) (clientv3.Op, string) {
	key := keyOf(r)
	options, what := []clientv3.OpOption{}, "get "+key
	switch r.IntN(5) {
	case 0:
		key = key[:len(key)-r.IntN(4)]
		options, what = append(options, clientv3.WithPrefix()), "get prefix "+key
	case 1:
		end := keyOf(r)
		options, what = append(options, clientv3.WithRange(end)), what+" to "+end
	case 2:
		options, what = append(options, clientv3.WithFromKey()), what+" on"
	case 3:
		key += "\x00"
		options, what = append(options, clientv3.WithRange("/registry0")), what+" after, to the prefix's end"
	}
	if r.IntN(3) == 0 {
		at := now - int64(r.IntN(30)) + 1
		options, what = append(options, clientv3.WithRev(at)), fmt.Sprint(what, " at ", at)
	}
	if r.IntN(3) == 0 {
		limit := int64(r.IntN(4))
		options, what = append(options, clientv3.WithLimit(limit)), fmt.Sprint(what, " limit ", limit)
	}
	switch r.IntN(8) {
	case 0:
		options, what = append(options, clientv3.WithCountOnly()), what+" count"
	case 1:
		options, what = append(options, clientv3.WithKeysOnly()), what+" keys"
	case 2:
		order := clientv3.SortOrder(r.IntN(3)) // by keys: etcd does not keep the order of what is equal
		options, what = append(options, clientv3.WithSort(clientv3.SortByKey, order)), fmt.Sprint(what, " sort ", order)
	case 3:
		options, what = append(options, clientv3.WithMinModRev(now-10), clientv3.WithMaxCreateRev(now-3)), what+" bounds"
	}
	return clientv3.OpGet(key, options...), what
}

// drawTxn draws a transaction: those of etcd's package kubernetes, and others with comparisons of the keys that they write.
func (p *pair) drawTxn(r *rand.Rand, now int64) question {
	key := keyOf(r)
	var compare clientv3.Cmp
	what := "txn " + key
	result := []string{"=", "!=", ">", "<"}[r.IntN(4)]
	n := r.IntN(3)
	switch r.IntN(5) {
	case 0:
		compare = clientv3.Compare(clientv3.ModRevision(key), result, int64(n)*now)
	case 1:
		compare = clientv3.Compare(clientv3.CreateRevision(key), result, now-int64(n))
	case 2:
		compare = clientv3.Compare(clientv3.Version(key), result, n)
	case 3:
		compare = clientv3.Compare(clientv3.Value(key), result, fmt.Sprint(n))
	case 4:
		compare = clientv3.Compare(clientv3.LeaseValue(key), result, 0)
	}
	branch := func() (ops []clientv3.Op) {
		switch r.IntN(6) {
		case 0:
			ops = append(ops, clientv3.OpPut(key, "t"), clientv3.OpGet("/registry/", clientv3.WithPrefix()))
		case 1:
			ops = append(ops, clientv3.OpGet(key), clientv3.OpDelete(key, clientv3.WithPrevKV()))
		case 2:
			ops = append(ops, clientv3.OpGet(key), clientv3.OpGet("/registry/a", clientv3.WithPrefix(), clientv3.WithCountOnly()))
		case 3:
			ops = append(ops, clientv3.OpPut(key, "u", clientv3.WithPrevKV()), clientv3.OpPut(key+"x", "v"), clientv3.OpDelete("/registry/b/a"))
		case 4:
			ops = append(ops, clientv3.OpPut(key, "u"), clientv3.OpPut(key, "v"))
		}
		return ops
	}
	yes, no := branch(), branch()
	return question{fmt.Sprintf("%s %v %d %d %d", what, result, n, len(yes), len(no)), func(c *clientv3.Client, _ int) (proto.Message, error) {
		got, err := c.Txn(context.Background()).If(compare).Then(yes...).Else(no...).Commit()
		return (*pb.TxnResponse)(got), err
	}}
}

// TestProtocolDiffers: an etcd and a store that is served as one answer random requests the same, and their watches show the same events.
func TestProtocolDiffers(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	p := &pair{etcd: c.client(t), mortise: served(t, localStore(t))}
	defer p.etcd.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	p.fixed(ctx, t)
	for range 3 {
		for which, client := range []*clientv3.Client{p.etcd, p.mortise} {
			got, err := client.Grant(ctx, 3600)
			must(t, err)
			p.leases[which] = append(p.leases[which], got.ID)
		}
	}
	watched := p.watch(ctx, t)
	now := int64(7)
	for n := range 2000 {
		q := p.ask(r, now)
		a, errA := q.send(p.etcd, 0)
		b, errB := q.send(p.mortise, 1)
		if fmt.Sprint(errA) != fmt.Sprint(errB) {
			t.Fatalf("%d: %s:\n%v\n%v", n, q.what, errA, errB)
		}
		if errA != nil {
			continue
		}
		if x, y := p.text(a), p.text(b); x != y {
			t.Fatalf("%d: %s:\netcd    %s\nMortise %s", n, q.what, x, y)
		}
		got, err := p.etcd.Get(ctx, "/none", clientv3.WithSerializable())
		must(t, err)
		now = got.Header.Revision
	}
	// The last write ends the watches.
	for which, client := range []*clientv3.Client{p.etcd, p.mortise} {
		_, err := client.Do(ctx, p.put("/registry/a/z", "last", false, -1, which))
		must(t, err)
	}
	watched(now + 1)
}

// fixed sends requests that random ones do not hold: sorted reads, and watches from old revisions and of the last compacted one.
func (p *pair) fixed(ctx context.Context, t *testing.T) {
	t.Helper()
	const all = "/registry/"
	write := func(key, value string) {
		t.Helper()
		for which, c := range []*clientv3.Client{p.etcd, p.mortise} {
			_, err := c.Do(ctx, p.put(all+key, value, false, -1, which))
			must(t, err)
		}
	}
	for _, w := range []string{"c 4", "a 9", "b 1", "c 2", "c 3", "b 5"} {
		key, value, _ := strings.Cut(w, " ")
		write(key, value)
	}
	for target := clientv3.SortByKey; target <= clientv3.SortByValue; target++ {
		for order := clientv3.SortNone; order <= clientv3.SortDescend; order++ {
			for limit := range int64(4) {
				var text [2]string
				for which, c := range []*clientv3.Client{p.etcd, p.mortise} {
					got, err := c.Get(ctx, all, clientv3.WithPrefix(), clientv3.WithSort(target, order), clientv3.WithLimit(limit))
					must(t, err)
					text[which] = p.text((*pb.RangeResponse)(got))
				}
				if text[0] != text[1] {
					t.Errorf("sort %d %d limit %d:\netcd    %s\nMortise %s", target, order, limit, text[0], text[1])
				}
			}
		}
	}
	events := func(from int64) (text [2]string) {
		for which, c := range []*clientv3.Client{p.etcd, p.mortise} {
			own, stop := context.WithCancel(ctx)
			var lines []string
			for last := int64(0); last < 7; {
				r := <-c.Watch(own, all, clientv3.WithPrefix(), clientv3.WithRev(max(last+1, from)))
				if r.Err() != nil {
					lines = append(lines, fmt.Sprint(r.Err(), r.CompactRevision))
					break
				}
				for _, e := range r.Events {
					last = e.Kv.ModRevision
					lines = append(lines, p.event(proto.Clone((*mvccpb.Event)(e)).(*mvccpb.Event)))
				}
			}
			stop()
			text[which] = strings.Join(lines, "\n")
		}
		return text
	}
	for _, compact := range []int64{0, 4} {
		for which, c := range []*clientv3.Client{p.etcd, p.mortise} {
			if compact == 0 {
				continue
			}
			if _, err := c.Compact(ctx, compact); err != nil {
				t.Fatalf("%d: %v", which, err)
			}
		}
		for from := int64(1); from < 8; from++ {
			if got := events(from); got[0] != got[1] {
				t.Errorf("compacted to %d, watch from %d:\n%s", compact, from, firstDifference(got[0], got[1]))
			}
		}
	}
}

// watch begins watches of several kinds at both, and returns a function that waits until they have reached a revision and compares them.
func (p *pair) watch(ctx context.Context, t *testing.T) func(last int64) {
	t.Helper()
	kinds := map[string][]clientv3.OpOption{
		"/registry/":     {clientv3.WithPrefix()},
		"/registry/a":    {clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithFragment()},
		"/registry/a/a":  {clientv3.WithRange("/registry/b"), clientv3.WithFilterDelete()},
		"/registry/b/a":  {clientv3.WithFilterPut(), clientv3.WithPrevKV()},
		"/registry/aa/b": {clientv3.WithFromKey(), clientv3.WithProgressNotify()},
	}
	type stream struct {
		what    string
		which   int
		channel clientv3.WatchChan
		watcher clientv3.Watcher
	}
	var all []stream
	for what, options := range kinds {
		for which, client := range []*clientv3.Client{p.etcd, p.mortise} {
			own := clientv3.NewWatcher(client)
			t.Cleanup(func() { own.Close() })
			all = append(all, stream{what, which, own.Watch(ctx, what, append(options, clientv3.WithCreatedNotify())...), own})
			if created := <-all[len(all)-1].channel; !created.Created {
				t.Errorf("%s: %v", what, created.Err())
			}
		}
	}
	return func(last int64) {
		seen := map[string]string{}
		for _, s := range all {
			var events []string
			// A watch tells when it is asked that it has shown all up to a revision. An etcd that is not there yet does not answer.
			for done := false; !done; {
				if err := s.watcher.RequestProgress(ctx); err != nil {
					t.Fatal(err)
				}
				select {
				case r, ok := <-s.channel:
					if !ok || r.Err() != nil {
						t.Fatalf("%s at %d ends: %v", s.what, s.which, r.Err())
					}
					for _, e := range r.Events {
						kv := proto.Clone((*mvccpb.Event)(e)).(*mvccpb.Event)
						events = append(events, p.event(kv))
					}
					done = r.IsProgressNotify() && r.Header.Revision >= last
				case <-time.After(time.Second):
				}
			}
			text := strings.Join(events, "\n")
			if other, ok := seen[s.what]; ok && other != text {
				t.Errorf("the watches of %s differ:\n%s", s.what, firstDifference(other, text))
			}
			seen[s.what] = text
			t.Logf("%s at %d: %d events", s.what, s.which, len(events))
		}
	}
}

func (p *pair) event(e *mvccpb.Event) string {
	for _, k := range []*mvccpb.KeyValue{e.Kv, e.PrevKv} {
		if k != nil {
			k.Lease, k.Version = 0, 0 // it may be late
		}
	}
	return strings.ReplaceAll(prototext.MarshalOptions{}.Format(e), "  ", " ")
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("%d:\netcd    %s\nMortise %s", i, x[i], y[i])
		}
	}
	return fmt.Sprintf("%d and %d events", len(x), len(y))
}
