// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// served serves an engine on a Unix socket until the test ends, and returns a client and a function that changes the server's clock.
func served(t *testing.T, engine store.Engine) (*clientv3.Client, func(time.Duration)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var ahead time.Duration
	now := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().Add(ahead)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := New(Options{Engine: engine, Scratch: t.TempDir(), Now: now}).Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + path}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		cancel()
		serving.Wait()
		engine.Close()
	})
	return client, func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		ahead += d
	}
}

// TestRefusedListeners: nobody listens for clients that nobody identifies.
func TestRefusedListeners(t *testing.T) {
	for name, config := range map[string]*tls.Config{
		"no TLS": nil, "no client certificates": {}, "unverified": {ClientAuth: tls.RequireAnyClientCert},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		engine := memory.Open(memory.Options{})
		if err := New(Options{Engine: engine, TLS: config}).Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: %v", name, err)
		}
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
			t.Errorf("%s: it listens", name)
		}
		engine.Close()
	}
}

// TestLimits: what is refused, in which words.
func TestLimits(t *testing.T) {
	client, _ := served(t, memory.Open(memory.Options{}))
	ctx := t.Context()
	long := make([]clientv3.Op, maxOps+1)
	for i := range long {
		long[i] = clientv3.OpGet("/registry/a")
	}
	compare := clientv3.Compare(clientv3.ModRevision("/registry/a"), "=", 0)
	for name, c := range map[string]struct {
		do   func() error
		says string
	}{
		"a key elsewhere": {func() error { _, err := client.Put(ctx, "/elsewhere", "x"); return err }, "below /registry/"},
		"the root itself": {func() error { _, err := client.Put(ctx, "/registry/", "x"); return err }, "below /registry/"},
		"no key":          {func() error { _, err := client.Put(ctx, "", "x"); return err }, "key is not provided"},
		"a comparison beside": {func() error {
			_, err := client.Txn(ctx).If(compare).Then(clientv3.OpPut("/registry/b", "x")).Commit()
			return err
		}, "compares only keys that it writes"},
		"a read between": {func() error {
			put := func(key string) clientv3.Op { return clientv3.OpPut(key, "x") }
			_, err := client.Txn(ctx).Then(put("/registry/b"), clientv3.OpGet("/registry/b"), put("/registry/c")).Commit()
			return err
		}, "reads only before or after"},
		"a transaction inside": {func() error {
			_, err := client.Txn(ctx).Then(clientv3.OpTxn(nil, nil, nil)).Commit()
			return err
		}, "transactions in transactions"},
		"too many": {func() error { _, err := client.Txn(ctx).Then(long...).Commit(); return err }, "too many operations"},
		"a lease that is none": {func() error {
			_, err := client.Put(ctx, "/registry/a", "x", clientv3.WithLease(7))
			return err
		}, "requested lease not found"},
		"a future revision": {func() error { _, err := client.Get(ctx, "/registry/a", clientv3.WithRev(99)); return err }, "future revision"},
		"a large value": {func() error {
			_, err := client.Put(ctx, "/registry/a", strings.Repeat("x", 4<<20))
			return err
		}, "larger than max"},
		"hashes": {func() error { _, err := client.HashKV(ctx, client.Endpoints()[0], 0); return err }, "not implemented"},
	} {
		if err := c.do(); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if got, err := client.Get(ctx, "/registry/", clientv3.WithPrefix()); err != nil || got.Count != 0 || got.Header.Revision != 1 {
		t.Errorf("something was written: %v %v", got, err)
	}
}

// TestLeases: a lease ends, is kept alive with its keys, and is known after a restart by its ID.
func TestLeases(t *testing.T) {
	engine := memory.Open(memory.Options{})
	client, ahead := served(t, engine)
	ctx := t.Context()
	granted, err := client.Grant(ctx, 100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "/registry/a", "x", clientv3.WithLease(granted.ID)); err != nil {
		t.Fatal(err)
	}
	r, _, err := engine.Get(ctx, "/registry/a")
	if err != nil || time.Until(r.Expires) > 101*time.Second || time.Until(r.Expires) < 50*time.Second {
		t.Errorf("the key expires %v %v", r, err)
	}
	ahead(60 * time.Second)
	if _, err := client.KeepAliveOnce(ctx, granted.ID); err != nil {
		t.Fatal(err)
	}
	ahead(60 * time.Second)
	ttl, err := client.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys())
	if err != nil || ttl.TTL < 30 || ttl.TTL > 40 || ttl.GrantedTTL != 100 || len(ttl.Keys) != 1 {
		t.Errorf("%+v %v", ttl, err)
	}
	another := newBackend(engine, time.Now) // after a restart
	if left, err := another.remaining(int64(granted.ID)); err != nil || left > 101*time.Second || left < 50*time.Second {
		t.Errorf("after a restart: %s %v", left, err)
	}
	if _, err := another.remaining(int64(granted.ID) + 1<<45); err == nil {
		t.Error("an ID that no server has chosen is a lease")
	}
	ahead(60 * time.Second)
	if _, err := client.KeepAliveOnce(ctx, granted.ID); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("it has ended: %v", err)
	}
	own, err := client.Grant(ctx, 50)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(ctx, "/registry/b", "x", clientv3.WithLease(own.ID)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Revoke(ctx, own.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := client.Get(ctx, "/registry/b"); err != nil || got.Count != 0 {
		t.Errorf("after the revocation: %v %v", got, err)
	}
	if _, err := client.Put(ctx, "/registry/b", "x", clientv3.WithLease(own.ID)); !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		t.Errorf("after the revocation: %v", err)
	}
}

// TestWatch: a watch that was answered progress has shown all events up to it; large revisions come in fragments; history that is gone ends
// a watch.
func TestWatch(t *testing.T) {
	engine := memory.Open(memory.Options{})
	client, _ := served(t, engine)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := clientv3.NewWatcher(client)
	defer w.Close()
	channel := w.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithFragment(), clientv3.WithCreatedNotify())
	<-channel
	var ops []store.Op
	for i := range 100 { // 2 MB at one revision
		ops = append(ops, store.Op{Key: fmt.Sprintf("/registry/%03d", i), Value: bytes.Repeat([]byte("x"), 20<<10)})
	}
	revision, _, err := engine.Commit(ctx, ops...)
	if err != nil {
		t.Fatal(err)
	}
	if r := <-channel; len(r.Events) != len(ops) || r.Header.Revision != revision { // the client puts fragments together
		t.Errorf("%d events at %d", len(r.Events), r.Header.Revision)
	}
	for i := range 20 {
		if _, err := client.Put(ctx, fmt.Sprint("/registry/p", i), "x"); err != nil {
			t.Fatal(err)
		}
		if err := w.RequestProgress(ctx); err != nil {
			t.Fatal(err)
		}
		shown := revision + int64(i)
		for {
			r := <-channel
			if r.IsProgressNotify() {
				if r.Header.Revision > shown {
					t.Errorf("progress %d, shown %d", r.Header.Revision, shown)
				}
				if r.Header.Revision == revision+int64(i)+1 {
					break
				}
				continue
			}
			shown = r.Events[len(r.Events)-1].Kv.ModRevision
		}
	}
	now := engine.Revision()
	if err := engine.Compact(ctx, now); err != nil {
		t.Fatal(err)
	}
	if r := <-client.Watch(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithRev(now-1)); r.CompactRevision != now || r.Err() == nil {
		t.Errorf("of history that is gone: %+v", r)
	}
}

// TestCompactKey: the key by which kube-apiservers agree counts how often it was written, also of a server that has just begun.
func TestCompactKey(t *testing.T) {
	engine := memory.Open(memory.Options{})
	client, _ := served(t, engine)
	swap := func(c *clientv3.Client, version int64) (bool, int64) {
		t.Helper()
		got, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.Version(compactKey), "=", version)).
			Then(clientv3.OpPut(compactKey, "1")).Else(clientv3.OpGet(compactKey)).Commit()
		if err != nil {
			t.Fatal(err)
		}
		if got.Succeeded {
			return true, version + 1
		}
		return false, got.Responses[0].GetResponseRange().Kvs[0].Version
	}
	for version := range int64(3) {
		if ok, next := swap(client, version); !ok || next != version+1 {
			t.Errorf("%d: %v %d", version, ok, next)
		}
	}
	if ok, next := swap(client, 1); ok || next != 3 {
		t.Errorf("an old version: %v %d", ok, next)
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	serving.Go(func() { _ = New(Options{Engine: engine}).Serve(ctx, l) })
	again, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + path}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	_, version := swap(again, 99)
	if ok, next := swap(again, version); !ok || next != version+1 {
		t.Errorf("after a restart: %v %d", ok, next)
	}
	if keys, err := again.Get(ctx, compactKey, clientv3.WithKeysOnly()); err != nil || !slices.Equal(keys.Kvs[0].Key, []byte(compactKey)) {
		t.Errorf("%v %v", keys, err)
	}
}
