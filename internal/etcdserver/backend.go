// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcdserver

import (
	"context"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortise-dev/mortise/store"
)

const (
	root = "/registry/"
	// compactKey is the key by which kube-apiservers agree on who compacts. The store has it below root.
	compactKey = "compact_rev_key"
	// memberID and clusterID are what a single member tells of itself; its term is that of its only election.
	memberID, clusterID, term = 0x6d6f7274697365, 0x6d6f7274697366, 2
)

// inner returns the store's key for one of etcd's.
func inner(key []byte) string {
	if string(key) == compactKey {
		return root + compactKey
	}
	return string(key)
}

// outer returns etcd's key for one of the store's.
func outer(key string) []byte {
	if key == root+compactKey {
		return []byte(compactKey)
	}
	return []byte(key)
}

// writable returns the store's key for one that is to be written.
func writable(key []byte) (string, error) {
	if len(key) == 0 {
		return "", rpctypes.ErrGRPCEmptyKey
	}
	k := inner(key)
	if !strings.HasPrefix(k, root) || k == root {
		return "", status.Errorf(codes.InvalidArgument, "mortise: key %q: keys are written below %s only", key, root)
	}
	return k, nil
}

// backend is what the services have in common.
type backend struct {
	engine store.Engine
	now    func() time.Time
	granted
	versions
}

func newBackend(e store.Engine, now func() time.Time) *backend {
	b := &backend{engine: e, now: now}
	b.granted.all, b.granted.of = map[int64]*lease{}, map[string]attached{}
	b.versions.known = map[string]version{}
	return b
}

// header returns the header of a response at a revision.
func (b *backend) header(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: clusterID, MemberId: memberID, Revision: revision, RaftTerm: term}
}

// keyValue returns a record as etcd shows it.
func (b *backend) keyValue(r *store.Record) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: outer(r.Key), Value: r.Value, CreateRevision: r.Created, ModRevision: r.Revision, Version: b.version(r), Lease: b.leaseOf(r),
	}
}

// interval is the keys from one on, to before another.
type interval struct {
	from, to string
	single   bool // only from
	open     bool // to the last key
}

// newInterval returns the interval of a request.
func newInterval(key, end []byte) interval {
	switch {
	case len(end) == 0:
		return interval{from: inner(key), single: true}
	case len(end) == 1 && end[0] == 0:
		return interval{from: string(key), open: true}
	}
	return interval{from: string(key), to: string(end)}
}

// has reports whether a key is in the interval.
func (i interval) has(key string) bool {
	switch {
	case i.single:
		return key == i.from
	case i.open:
		return key >= i.from
	}
	return key >= i.from && key < i.to
}

// prefix returns the longest prefix that all keys of the interval have, and whether the keys are all those with the prefix from one on.
func (i interval) prefix() (p string, whole bool) {
	switch {
	case i.single:
		return i.from, false
	case i.open:
		return "", true
	}
	if n := len(i.to) - 1; i.to[n] > 0 {
		if p = i.to[:n] + string([]byte{i.to[n] - 1}); strings.HasPrefix(i.from, p) {
			return p, true
		}
	}
	n := 0
	for n < len(i.from) && n < len(i.to) && i.from[n] == i.to[n] {
		n++
	}
	return i.from[:n], false
}

// found is the result of a read.
type found struct {
	records  []*store.Record
	count    int64 // of all in the interval, whatever the limit
	revision int64 // of the read
}

// read reads an interval at a revision, 0 for the newest. A limit of 0 is none.
func (b *backend) read(ctx context.Context, i interval, revision int64, limit int) (found, error) {
	if i.single {
		return b.readOne(ctx, i.from, revision)
	}
	prefix, whole := i.prefix()
	ask := store.Range{Prefix: prefix, Revision: revision, After: i.from}
	if i.from <= prefix {
		ask.After = ""
	} else if n := len(i.from) - 1; i.from[n] == 0 {
		ask.After = i.from[:n]
	}
	inclusive := ask.After != i.from || ask.After == "" // else the first key itself is read apart
	if whole {
		ask.Limit = limit
	}
	page, err := b.engine.Range(ctx, ask)
	if err != nil {
		return found{}, err
	}
	out := found{records: page.Records, revision: page.Revision}
	if !inclusive {
		first, err := b.readOne(ctx, i.from, page.Revision)
		if err != nil {
			return found{}, err
		}
		out.records = append(first.records, out.records...)
	}
	if !whole {
		n := 0
		for n < len(out.records) && out.records[n].Key < i.to {
			n++
		}
		out.records, page.Remaining = out.records[:n], 0
	}
	out.count = int64(len(out.records)) + page.Remaining
	if limit > 0 && len(out.records) > limit {
		out.records = out.records[:limit]
	}
	return out, nil
}

// readOne reads one key.
func (b *backend) readOne(ctx context.Context, key string, revision int64) (out found, err error) {
	if key == "" {
		return found{revision: b.engine.Revision()}, nil
	}
	if revision == 0 {
		r, at, err := b.engine.Get(ctx, key)
		if err != nil {
			return out, err
		}
		out.revision = at
		if r != nil {
			out.records = []*store.Record{r}
		}
	} else {
		page, err := b.engine.Range(ctx, store.Range{Prefix: key, Limit: 1, Revision: revision})
		if err != nil {
			return out, err
		}
		out.revision = page.Revision
		if len(page.Records) > 0 && page.Records[0].Key == key {
			out.records = page.Records
		}
	}
	out.count = int64(len(out.records))
	return out, nil
}

// maxVersions is the number of keys whose versions are known at most; then all are forgotten.
const maxVersions = 10_000

// version is that of a key at a revision.
type version struct{ revision, version int64 }

// versions knows the versions of keys that were written here.
type versions struct {
	mu    sync.Mutex
	known map[string]version
}

// version returns how often a key was written since it was created: see the limits of the package.
func (v *versions) version(r *store.Record) int64 {
	if r.Created == r.Revision {
		return 1
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	k, ok := v.known[r.Key]
	switch {
	case ok && k.revision == r.Revision:
		return k.version
	case ok && k.revision >= r.Created && k.revision < r.Revision:
		return k.version + 1
	}
	return 2
}

// wrote records the version of a key that was written.
func (v *versions) wrote(r *store.Record, now int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.known) >= maxVersions {
		clear(v.known)
	}
	v.known[r.Key] = version{r.Revision, now}
}
