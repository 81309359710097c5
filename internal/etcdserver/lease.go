// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/mortise-dev/mortise/store"
)

const (
	maxLeaseTTL = 9_000_000_000 // seconds, etcd's bound
	maxLeases   = 100_000
	// maxKeys is the number of keys of all leases whose leases are known at most; the keys of further ones expire all the same.
	maxKeys = 1_000_000
)

// The ID of a lease says when it ends, so that the server knows it after a restart: the second, counted from epoch, its time to live, and a
// number that tells it from others.
const (
	epoch     = 1_577_836_800 // 2020
	ttlBits   = 23
	saltBits  = 8
	longestID = 1<<ttlBits - 1 // seconds
)

// lease is a lease that was granted here. The lock of granted guards it.
type lease struct {
	ttl     int64 // seconds
	expires time.Time
	keys    map[string]bool
}

// granted is the leases.
type granted struct {
	mu  sync.Mutex
	all map[int64]*lease
	of  map[string]attached // by key
}

// attached is the lease of a key, at a revision.
type attached struct{ lease, revision int64 }

// leaseOf returns the lease of a record; 0: none is known.
func (g *granted) leaseOf(r *store.Record) int64 {
	if r.Expires.IsZero() {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if a := g.of[r.Key]; a.revision == r.Revision {
		return a.lease
	}
	return 0
}

// attach records that a key was written with a lease at a revision; 0: with none.
func (g *granted) attach(key string, id, revision int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if before, ok := g.of[key]; ok {
		if before.revision > revision {
			return // a later write was faster
		}
		if l := g.all[before.lease]; l != nil {
			delete(l.keys, key)
		}
		delete(g.of, key)
	}
	if l := g.all[id]; l != nil && len(g.of) < maxKeys {
		l.keys[key] = true
		g.of[key] = attached{id, revision}
	}
}

// find returns a lease that has not ended; nil: there is none. The caller holds the lock.
func (g *granted) find(id int64, now time.Time) *lease {
	if l := g.all[id]; l != nil {
		if now.Before(l.expires) {
			return l
		}
		g.drop(id, l)
		return nil
	}
	ends, ttl := time.Unix(epoch+id>>(ttlBits+saltBits), 0), id>>saltBits&longestID
	if id <= 0 || !now.Before(ends) || ends.Sub(now) > time.Duration(ttl+1)*time.Second {
		return nil
	}
	l := &lease{ttl: ttl, expires: ends, keys: map[string]bool{}} // of before a restart
	g.all[id] = l
	return l
}

func (g *granted) drop(id int64, l *lease) {
	for key := range l.keys {
		delete(g.of, key)
	}
	delete(g.all, id)
}

// prune drops the leases that have ended. The caller holds the lock.
func (g *granted) prune(now time.Time) {
	for id, l := range g.all {
		if !now.Before(l.expires) {
			g.drop(id, l)
		}
	}
}

// remaining returns how long a key that is written with a lease lives.
func (b *backend) remaining(id int64) (time.Duration, error) {
	b.granted.mu.Lock()
	defer b.granted.mu.Unlock()
	now := b.now()
	l := b.find(id, now)
	if l == nil {
		return 0, rpctypes.ErrGRPCLeaseNotFound
	}
	return l.expires.Sub(now), nil
}

// leases is the service Lease.
type leases struct {
	pb.UnimplementedLeaseServer
	*backend
}

// LeaseGrant implements [pb.LeaseServer].
func (s *leases) LeaseGrant(_ context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	if r.TTL > maxLeaseTTL {
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	ttl, now := max(r.TTL, 1), s.now()
	g := &s.granted
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.all) >= maxLeases {
		g.prune(now)
	}
	switch {
	case len(g.all) >= maxLeases:
		return nil, rpctypes.ErrGRPCRequestTooManyRequests
	case r.ID < 0:
		return nil, rpctypes.ErrGRPCLeaseNotFound
	case r.ID != 0 && g.find(r.ID, now) != nil:
		return nil, rpctypes.ErrGRPCLeaseExist
	}
	expires, id := now.Add(time.Duration(ttl)*time.Second), r.ID
	for id == 0 || r.ID == 0 && g.all[id] != nil {
		ends := expires.Unix() - epoch
		if ends >= 1<<32 { // beyond what an ID can say
			id = rand.Int64()
			continue
		}
		id = ends<<(ttlBits+saltBits) | min(ttl, longestID)<<saltBits | rand.Int64N(1<<saltBits)
		expires = expires.Add(time.Second) // of the next one, should there be many in this second
	}
	g.all[id] = &lease{ttl: ttl, expires: now.Add(time.Duration(ttl) * time.Second), keys: map[string]bool{}}
	return &pb.LeaseGrantResponse{Header: s.header(s.engine.Revision()), ID: id, TTL: ttl}, nil
}

// LeaseRevoke implements [pb.LeaseServer].
func (s *leases) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	keys, _, ok := s.keys(r.ID)
	if !ok {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	g := &s.granted
	g.mu.Lock()
	if l := g.all[r.ID]; l != nil {
		l.expires = time.Time{} // until it is forgotten, and for an ID that says when it ends
		clear(l.keys)
	}
	for _, key := range keys {
		delete(g.of, key)
	}
	g.mu.Unlock()
	for part := range slices.Chunk(keys, maxOps) {
		ops := make([]store.Op, len(part))
		for i, key := range part {
			ops[i] = store.Op{Key: key, Expect: store.Any}
		}
		if _, _, err := s.engine.Commit(ctx, ops...); err != nil {
			return nil, translate(err)
		}
	}
	return &pb.LeaseRevokeResponse{Header: s.header(s.engine.Revision())}, nil
}

// keys returns the keys of a lease and the lease; false: it has ended.
func (s *leases) keys(id int64) ([]string, lease, bool) {
	g := &s.granted
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.find(id, s.now())
	if l == nil {
		return nil, lease{}, false
	}
	return slices.Sorted(maps.Keys(l.keys)), *l, true
}

// LeaseTimeToLive implements [pb.LeaseServer].
func (s *leases) LeaseTimeToLive(_ context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	out := &pb.LeaseTimeToLiveResponse{Header: s.header(s.engine.Revision()), ID: r.ID, TTL: -1}
	keys, l, ok := s.keys(r.ID)
	if !ok {
		return out, nil
	}
	out.TTL, out.GrantedTTL = int64(l.expires.Sub(s.now())/time.Second), l.ttl
	if r.Keys {
		for _, key := range keys {
			out.Keys = append(out.Keys, outer(key))
		}
	}
	return out, nil
}

// LeaseLeases implements [pb.LeaseServer].
func (s *leases) LeaseLeases(context.Context, *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	out := &pb.LeaseLeasesResponse{Header: s.header(s.engine.Revision())}
	g := &s.granted
	g.mu.Lock()
	defer g.mu.Unlock()
	g.prune(s.now())
	for _, id := range slices.Sorted(maps.Keys(g.all)) {
		out.Leases = append(out.Leases, &pb.LeaseStatus{ID: id})
	}
	return out, nil
}

// LeaseKeepAlive implements [pb.LeaseServer].
func (s *leases) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		ttl, err := s.keepAlive(stream.Context(), r.ID)
		if err != nil {
			return translate(err)
		}
		if err := stream.Send(&pb.LeaseKeepAliveResponse{Header: s.header(s.engine.Revision()), ID: r.ID, TTL: ttl}); err != nil {
			return err
		}
	}
}

// keepAlive lets a lease begin again, and its keys with it. It returns its time to live; 0: it has ended.
func (s *leases) keepAlive(ctx context.Context, id int64) (int64, error) {
	keys, l, ok := s.keys(id)
	if !ok {
		return 0, nil
	}
	whole := time.Duration(l.ttl) * time.Second
	g := &s.granted
	g.mu.Lock()
	if l := g.all[id]; l != nil && !l.expires.IsZero() {
		l.expires = s.now().Add(whole)
	}
	g.mu.Unlock()
	for _, key := range keys {
		r, _, err := s.engine.Get(ctx, key)
		if err != nil {
			return 0, err
		}
		if r == nil || r.Expires.IsZero() {
			continue
		}
		was := s.version(r)
		_, records, err := s.engine.Commit(ctx, store.Op{Key: key, Value: r.Value, Expect: r.Revision, TTL: whole})
		var conflict *store.ConflictError
		switch {
		case errors.As(err, &conflict): // the other write has given it its time
		case err != nil:
			return 0, err
		default:
			s.wrote(records[0], was)
			s.attach(key, id, records[0].Revision)
		}
	}
	return l.ttl, nil
}
