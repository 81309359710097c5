// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package peerproxy

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mortise-dev/mortise/store"
)

// Prefix is where servers write their addresses, by their identities.
const Prefix = "/registry/peerserverleases/"

// identities is where the Leases are that tell when a server has started anew.
const identities = "/registry/leases/kube-system/apiserver-"

// identityLabel names the server in the value of its key.
const identityLabel = "apiserverIdentity"

// The times of kube-apiserver: a server that has not renewed its key for ttl is gone.
const (
	ttl     = 15 * time.Second
	renewal = 10 * time.Second
)

// retry is the time until a renewal or a watch that failed is tried again; removal is how long the removal of the key may take.
const retry, removal = time.Second, 2 * time.Second

// peer is another server, as the store tells of it.
type peer struct {
	at     netip.AddrPort
	holder string // of the identity Lease: it changes with each start
	stop   context.CancelFunc
}

// Run holds this server's key and follows the other servers until ctx ends. Then it removes the key.
func (p *Proxy) Run(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { p.hold(ctx) })
	all.Go(func() { p.follow(ctx, Prefix, p.moved(ctx, &all)) })
	all.Go(func() { p.follow(ctx, identities, p.began(ctx, &all)) })
	<-ctx.Done()
	p.transport.CloseIdleConnections()
}

// hold writes the key until ctx ends, and removes it.
func (p *Proxy) hold(ctx context.Context) {
	key := Prefix + p.o.ID
	for generation := int64(1); ctx.Err() == nil; generation++ {
		next := renewal
		if _, err := p.o.Store.Put(ctx, store.Op{Key: key, Value: p.value(generation), Expect: store.Any, TTL: ttl}); err != nil {
			if ctx.Err() != nil {
				break
			}
			next = retry
			p.o.Log.WarnContext(ctx, "Could not renew the key by which other servers find this one, retrying", "key", key, "error", err)
		}
		wait(ctx, next)
	}
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	if _, err := p.o.Store.Delete(rest, key, store.Any); err != nil {
		p.o.Log.WarnContext(rest, "Could not remove the key by which other servers find this one; it expires",
			"key", key, "after", ttl, "error", err)
	}
}

// value returns what kube-apiserver writes: Endpoints with the address, the identity as a label, and a generation that each renewal raises.
func (p *Proxy) value(generation int64) []byte {
	e := &corev1.Endpoints{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{Generation: generation, Labels: map[string]string{identityLabel: p.o.ID}},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: p.o.Own.Addr().String()}},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(p.o.Own.Port()), Protocol: corev1.ProtocolTCP}},
		}},
	}
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(e, &b); err != nil {
		panic(err) // all that it encodes is made here
	}
	return b.Bytes()
}

// follow calls tell with the name after the prefix and the value of each key, nil for one that is gone, until ctx ends.
func (p *Proxy) follow(ctx context.Context, prefix string, tell func(name string, value []byte)) {
	seen := map[string]bool{}
	for ctx.Err() == nil {
		err := p.read(ctx, prefix, seen, tell)
		if ctx.Err() != nil {
			return
		}
		p.o.Log.WarnContext(ctx, "Lost the watch of the other servers, retrying", "prefix", prefix, "error", err)
		wait(ctx, retry)
	}
}

// read is follow until the watch ends. Seen are the names that tell knows.
func (p *Proxy) read(ctx context.Context, prefix string, seen map[string]bool, tell func(name string, value []byte)) error {
	page, err := p.o.Store.List(ctx, prefix)
	if err != nil {
		return fmt.Errorf("list: %w", err)
	}
	there := map[string]bool{}
	for _, r := range page.Records {
		name := strings.TrimPrefix(r.Key, prefix)
		there[name], seen[name] = true, true
		tell(name, r.Value)
	}
	for name := range seen {
		if !there[name] {
			delete(seen, name)
			tell(name, nil)
		}
	}
	w, err := p.o.Store.Watch(ctx, prefix, page.Revision)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		for _, e := range batch.Events {
			name := strings.TrimPrefix(e.Key, prefix)
			if e.Record == nil {
				delete(seen, name)
				tell(name, nil)
				continue
			}
			seen[name] = true
			tell(name, e.Record.Value)
		}
	}
}

// moved returns what follows the addresses.
func (p *Proxy) moved(ctx context.Context, all *sync.WaitGroup) func(id string, value []byte) {
	return func(id string, value []byte) {
		at, _ := address(value)
		p.learn(ctx, all, id, func(s *peer) { s.at = at })
	}
}

// began returns what follows the starts of servers.
func (p *Proxy) began(ctx context.Context, all *sync.WaitGroup) func(name string, value []byte) {
	return func(name string, value []byte) {
		var l coordinationv1.Lease
		holder := ""
		if decode(value, &l) == nil && l.Spec.HolderIdentity != nil {
			holder = *l.Spec.HolderIdentity
		}
		p.learn(ctx, all, "apiserver-"+name, func(s *peer) { s.holder = holder })
	}
}

// learn changes what the store tells of a server. If it is reached elsewhere, or has started anew, it is asked what it serves.
func (p *Proxy) learn(ctx context.Context, all *sync.WaitGroup, id string, change func(*peer)) {
	if id == p.o.ID {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.known[id]
	now := peer{}
	if before != nil {
		now = *before
	}
	change(&now)
	if before != nil && now.at == before.at && now.holder == before.holder {
		return
	}
	if before != nil && before.stop != nil {
		before.stop()
	}
	now.stop = nil
	switch {
	case now.at.IsValid():
		asking, stop := context.WithCancel(ctx)
		now.stop = stop
		all.Go(func() { p.ask(asking, id, now.at) })
	default:
		p.set(id, nil)
		if now.holder == "" {
			delete(p.known, id)
			return
		}
	}
	p.known[id] = &now
}

// address returns the address in a key's value.
func address(value []byte) (netip.AddrPort, bool) {
	var e corev1.Endpoints
	if decode(value, &e) != nil || len(e.Subsets) == 0 || len(e.Subsets[0].Addresses) == 0 || len(e.Subsets[0].Ports) == 0 {
		return netip.AddrPort{}, false
	}
	ip, err := netip.ParseAddr(e.Subsets[0].Addresses[0].IP)
	port := e.Subsets[0].Ports[0].Port
	if err != nil || port <= 0 || port > math.MaxUint16 {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(ip, uint16(port)), true
}

func decode(value []byte, into runtime.Object) error {
	_, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(value, nil, into)
	return err
}
