// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package masterleases tells the API servers that share a store of each other's addresses, in the keys and values that kube-apiserver's
// --endpoint-reconciler-type=lease uses: a key below /registry/masterleases/ for each server, with the server's address as its name, which
// expires unless the server writes it again.
package masterleases

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/mortise-dev/mortise/store"
)

const prefix = "/registry/masterleases/"

// The times of kube-apiserver: a server that has not renewed its lease for ttl is gone.
const (
	ttl     = 15 * time.Second
	renewal = 10 * time.Second
)

// retry is the time until a renewal or a watch that failed is tried again.
const retry = time.Second

// removal is how long the removal of the lease of a server that stops may take.
const removal = 2 * time.Second

// Leases are the leases of the servers that share a store. It is safe for concurrent use.
type Leases struct {
	Store *store.Store
	Port  uint16 // at which this server listens; others whose leases tell none are believed to have the same
	Log   *slog.Logger
}

// Hold holds a lease for a server's address until ctx ends. It calls changed with the addresses of all servers, in their order: at once,
// and whenever they change. Its calls do not overlap. A lease that another server has removed, see [Leases.Guard], is written again at
// once. At the end Hold removes the lease, so that the other servers learn at once that this one is gone.
func (l *Leases) Hold(ctx context.Context, own netip.Addr, changed func([]netip.Addr)) {
	key := prefix + own.String()
	var generation int64
	renew := func() time.Duration {
		generation++
		at := netip.AddrPortFrom(own, l.Port)
		_, err := l.Store.Put(ctx, store.Op{Key: key, Value: value(at, generation), Expect: store.Any, TTL: ttl})
		if err == nil {
			return renewal
		}
		if ctx.Err() == nil {
			l.Log.WarnContext(ctx, "Could not renew the lease of the server's address, retrying", "address", own, "error", err)
		}
		return retry
	}
	next := renew()
	lost := make(chan struct{}, 1)
	var following sync.WaitGroup
	following.Go(func() {
		var told []netip.Addr
		l.follow(ctx, func(known servers) {
			if _, held := known[own]; !held {
				select {
				case lost <- struct{}{}:
				default:
				}
			}
			now := slices.SortedFunc(maps.Keys(known), netip.Addr.Compare)
			if len(now) == 0 || slices.Equal(now, told) { // without any, the own lease could not be renewed
				return
			}
			told = now
			changed(slices.Clone(now))
		})
	})
	renewing := time.NewTimer(next)
	defer renewing.Stop()
	for ctx.Err() == nil {
		select {
		case <-renewing.C:
			next = renew()
		case <-lost:
			next = renew()
		case <-ctx.Done():
		}
		renewing.Reset(next)
	}
	following.Wait()
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	defer cancel()
	if _, err := l.Store.Delete(rest, key, store.Any); err != nil {
		l.Log.WarnContext(rest, "Could not remove the lease of the server's address; it expires", "address", own, "after", ttl, "error", err)
	}
}

// Follow calls changed with the addresses and ports of all servers until ctx ends, as [Leases.Hold] does.
func (l *Leases) Follow(ctx context.Context, changed func([]netip.AddrPort)) {
	var told []netip.AddrPort
	l.follow(ctx, func(known servers) {
		now := make([]netip.AddrPort, 0, len(known))
		for at, port := range known {
			now = append(now, netip.AddrPortFrom(at, port))
		}
		slices.SortFunc(now, netip.AddrPort.Compare)
		if len(now) == 0 || slices.Equal(now, told) {
			return
		}
		told = now
		changed(slices.Clone(now))
	})
}

// servers are the addresses of servers with their ports.
type servers map[netip.Addr]uint16

// follow calls tell with the servers until ctx ends: at once, and after each change of a lease.
func (l *Leases) follow(ctx context.Context, tell func(servers)) {
	for ctx.Err() == nil {
		err := l.read(ctx, tell)
		if ctx.Err() != nil {
			return
		}
		l.Log.WarnContext(ctx, "Lost the watch of the leases of servers' addresses, retrying", "error", err)
		wait(ctx, retry)
	}
}

// read reads the leases and follows their changes until that fails.
func (l *Leases) read(ctx context.Context, tell func(servers)) error {
	page, err := l.Store.List(ctx, prefix)
	if err != nil {
		return fmt.Errorf("list the leases: %w", err)
	}
	known := servers{}
	for _, r := range page.Records {
		if at, ok := address(r.Key); ok {
			known[at] = l.port(r.Value)
		}
	}
	tell(known)
	w, err := l.Store.Watch(ctx, prefix, page.Revision)
	if err != nil {
		return fmt.Errorf("watch the leases: %w", err)
	}
	defer w.Close()
	for {
		batch, err := w.Next(ctx)
		if err != nil {
			return fmt.Errorf("watch the leases: %w", err)
		}
		for _, e := range batch.Events {
			at, ok := address(e.Key)
			switch {
			case !ok:
			case e.Record == nil:
				delete(known, at)
			default:
				known[at] = l.port(e.Record.Value)
			}
		}
		tell(known)
	}
}

// wait waits, and reports whether it did: ctx may end before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// address returns the address that a key is of.
func address(key string) (netip.Addr, bool) {
	at, err := netip.ParseAddr(strings.TrimPrefix(key, prefix))
	return at, err == nil
}

// value returns what kube-apiserver writes, Endpoints with the address and a generation that each renewal raises, and the port beside them.
// kube-apiserver reads the address alone.
func value(at netip.AddrPort, generation int64) []byte {
	e := &corev1.Endpoints{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Endpoints"},
		ObjectMeta: metav1.ObjectMeta{Generation: generation},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: at.Addr().String()}}}},
	}
	if at.Port() != 0 {
		e.Subsets[0].Ports = []corev1.EndpointPort{{Name: "https", Port: int32(at.Port()), Protocol: corev1.ProtocolTCP}}
	}
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(e, &b); err != nil {
		panic(err) // all that it encodes is made here
	}
	return b.Bytes()
}

// port returns the port in a lease's value: this server's own if it has none, as kube-apiserver's, or cannot be read.
func (l *Leases) port(value []byte) uint16 {
	var e corev1.Endpoints
	_, _, err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Decode(value, nil, &e)
	if err != nil || len(e.Subsets) == 0 || len(e.Subsets[0].Ports) == 0 {
		return l.Port
	}
	if p := e.Subsets[0].Ports[0].Port; p > 0 && p <= math.MaxUint16 {
		return uint16(p)
	}
	return l.Port
}
