// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package snapshotfile reads and writes snapshot files of etcd: those that `etcdctl snapshot save` writes and `etcdutl snapshot restore`
// reads.
//
// # Stability
//
// Other programs may use this package. A committed list of what it exports is compared in a test, so that nothing changes by accident. A
// release may change it, and its notes announce the change.
package snapshotfile

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
)

// A snapshot file of etcd is a bolt database and the SHA-256 sum of its bytes (etcd, server/storage/schema, server/storage/mvcc). These are
// its buckets and keys that a store's content needs.
var (
	keyBucket    = []byte("key")   // revision → mvccpb.KeyValue
	leaseBucket  = []byte("lease") // ID → leasepb.Lease
	metaBucket   = []byte("meta")
	compactedKey = []byte("finishedCompactRev")
)

const (
	revisionBytes = 17 // revision, "_", number within the revision, both of 8 bytes, big endian
	tombstoneMark = 't'
	// maxSnapshot is the size of a snapshot file that is read at most; etcd advises against more than 8 GB.
	maxSnapshot = 16 << 30
	// batchRecords is the number of records in one transaction of the file.
	batchRecords = 10_000
)

// Write writes a snapshot file of etcd with the content, under etcd's keys of the prefix, which `etcdutl snapshot restore` takes.
// The records keep their revisions; etcd continues after c.Revision, and answers reads and watches of older revisions as compacted. Keys
// with a time to live get leases that end up to a minute later. Write needs space for the file in the directory scratch.
func Write(ctx context.Context, out io.Writer, scratch, prefix string, c store.Content) error {
	if err := write(ctx, out, scratch, prefix, c); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

func write(ctx context.Context, out io.Writer, scratch, prefix string, c store.Content) (err error) {
	f, err := os.CreateTemp(scratch, "mortise-snapshot-")
	if err != nil {
		return err
	}
	path := f.Name()
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	if err := f.Close(); err != nil {
		return err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true, NoFreelistSync: true})
	if err != nil {
		return err
	}
	w := snapshotWriter{db: db, keys: keyspace.New(prefix), leases: map[int64]int64{}}
	err = w.write(ctx, c)
	if err == nil {
		err = db.View(func(tx *bolt.Tx) error {
			sum := sha256.New()
			if _, err := tx.WriteTo(io.MultiWriter(out, sum)); err != nil {
				return err
			}
			_, err := out.Write(sum.Sum(nil))
			return err
		})
	}
	return errors.Join(err, db.Close())
}

type snapshotWriter struct {
	db     *bolt.DB
	keys   keyspace.Keyspace
	leases map[int64]int64 // seconds that are left → lease's ID
}

func (w *snapshotWriter) write(ctx context.Context, c store.Content) error {
	records := slices.Clone(c.Records)
	slices.SortStableFunc(records, func(a, b *store.Record) int { return cmp.Compare(a.Revision, b.Revision) })
	var last, within int64
	for batch := range slices.Chunk(records, batchRecords) {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := w.db.Update(func(tx *bolt.Tx) error {
			keys, err := tx.CreateBucketIfNotExists(keyBucket)
			if err != nil {
				return err
			}
			keys.FillPercent = 0.9 // revisions ascend
			for _, r := range batch {
				if within++; r.Revision != last {
					last, within = r.Revision, 0
				}
				if err := w.put(tx, keys, r, within); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return w.db.Update(func(tx *bolt.Tx) error { return w.finish(tx, c.Revision, last) })
}

func (w *snapshotWriter) put(tx *bolt.Tx, keys *bolt.Bucket, r *store.Record, within int64) error {
	outer, ok := w.keys.Outer(r.Key)
	if !ok {
		return fmt.Errorf("key %q is not under %s: %w", r.Key, keyspace.Root, store.ErrInvalid)
	}
	kv := &mvccpb.KeyValue{Key: []byte(outer), Value: r.Value, CreateRevision: r.Created, ModRevision: r.Revision, Version: 1}
	if r.Created != r.Revision {
		kv.Version = 2 // how often it was written is not known
	}
	if !r.Expires.IsZero() {
		id, err := w.lease(tx, r.Expires)
		if err != nil {
			return err
		}
		kv.Lease = id
	}
	raw, err := proto.Marshal(kv)
	if err != nil {
		return err
	}
	return keys.Put(encodeRevision(r.Revision, within), raw)
}

// lease returns the ID of a lease that ends at a time, within a minute after it.
func (w *snapshotWriter) lease(tx *bolt.Tx, expires time.Time) (int64, error) {
	left := max(int64(time.Until(expires)/time.Minute)+1, 1) * 60
	if id, ok := w.leases[left]; ok {
		return id, nil
	}
	b, err := tx.CreateBucketIfNotExists(leaseBucket)
	if err != nil {
		return 0, err
	}
	id := int64(len(w.leases) + 1)
	w.leases[left] = id
	return id, b.Put(binary.BigEndian.AppendUint64(nil, uint64(id)), appendLease(nil, id, left))
}

// finish makes revision the newest, and the oldest that can be read.
func (w *snapshotWriter) finish(tx *bolt.Tx, revision, last int64) error {
	keys, err := tx.CreateBucketIfNotExists(keyBucket)
	if err != nil {
		return err
	}
	if last < revision { // the newest changes were deletes
		raw, err := proto.Marshal(&mvccpb.KeyValue{Key: []byte(w.keys.First() + "newest-revision")})
		if err != nil {
			return err
		}
		if err := keys.Put(append(encodeRevision(revision, 0), tombstoneMark), raw); err != nil {
			return err
		}
	}
	if _, err := tx.CreateBucketIfNotExists(leaseBucket); err != nil {
		return err
	}
	meta, err := tx.CreateBucketIfNotExists(metaBucket)
	if err != nil {
		return err
	}
	return meta.Put(compactedKey, encodeRevision(revision, 0))
}

func encodeRevision(revision, within int64) []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, revisionBytes+1), uint64(revision))
	return binary.BigEndian.AppendUint64(append(b, '_'), uint64(within))
}

// decodeRevision reads the key of a change, and reports whether that is a delete.
func decodeRevision(b []byte) (revision int64, tombstone bool, err error) {
	if len(b) != revisionBytes && (len(b) != revisionBytes+1 || b[revisionBytes] != tombstoneMark) || b[8] != '_' {
		return 0, false, fmt.Errorf("revision %x: %w", b, store.ErrCorrupt)
	}
	revision = int64(binary.BigEndian.Uint64(b))
	if revision < 1 {
		return 0, false, fmt.Errorf("revision %d: %w", revision, store.ErrCorrupt)
	}
	return revision, len(b) > revisionBytes, nil
}

// appendLease appends leasepb.Lease, a message of etcd's server: 1 ID, 2 TTL, 3 remaining TTL.
func appendLease(b []byte, id, seconds int64) []byte {
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), uint64(id))
	return protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(seconds))
}

// decodeLease returns the seconds that a lease has left: those of its last checkpoint, or all.
func decodeLease(b []byte) (int64, error) {
	var values [4]uint64
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 || kind != protowire.VarintType {
			return 0, fmt.Errorf("lease: %w", store.ErrCorrupt)
		}
		v, m := protowire.ConsumeVarint(b[n:])
		if m < 0 {
			return 0, fmt.Errorf("lease: %w", store.ErrCorrupt)
		}
		if number < 4 {
			values[number] = v
		}
		b = b[n+m:]
	}
	return int64(min(cmp.Or(values[3], values[2]), 1<<31)), nil
}

// Read reads a snapshot file of etcd, as `etcdctl snapshot save` writes it: the newest state of the keys under a prefix.
// Content.Revision is etcd's, of all keys. A file without a sum or with a wrong one is refused with [store.ErrCorrupt].
func Read(ctx context.Context, path, prefix string) (c store.Content, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read snapshot %s: %w", path, err)
		}
	}()
	if err := checkSum(path); err != nil {
		return c, err
	}
	db, err := bolt.Open(path, 0, &bolt.Options{ReadOnly: true})
	if err != nil {
		return c, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
	}
	// A page number beyond the end of a file with a right sum is a fault of the memory map.
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", store.ErrCorrupt, v)
		}
		err = errors.Join(err, db.Close())
	}()
	r := snapshotReader{keys: keyspace.New(prefix), now: time.Now()}
	err = db.View(func(tx *bolt.Tx) error {
		c, err = r.read(ctx, tx)
		return err
	})
	return c, err
}

func checkSum(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - sha256.Size
	if size <= 0 || size%512 != 0 {
		return fmt.Errorf("there is no sum at its end, as `etcdctl snapshot save` writes it: %w", store.ErrCorrupt)
	}
	if size > maxSnapshot {
		return fmt.Errorf("%d bytes, at most %d are read: %w", size, int64(maxSnapshot), store.ErrTooLarge)
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, f, size); err != nil {
		return err
	}
	want, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return fmt.Errorf("its sum is wrong: %w", store.ErrCorrupt)
	}
	return nil
}

type snapshotReader struct {
	keys keyspace.Keyspace
	now  time.Time
}

func (s *snapshotReader) read(ctx context.Context, tx *bolt.Tx) (c store.Content, err error) {
	keys := tx.Bucket(keyBucket)
	if keys == nil {
		return c, fmt.Errorf("no bucket of keys: %w", store.ErrCorrupt)
	}
	latest, err := s.latest(ctx, keys, &c.Revision)
	if err != nil {
		return c, err
	}
	expiries, err := s.expiries(tx.Bucket(leaseBucket))
	if err != nil {
		return c, err
	}
	c.Revision = max(c.Revision, 1)
	for _, kv := range latest {
		r := &store.Record{Key: s.keys.Inner(kv.Key), Value: kv.Value, Revision: kv.ModRevision, Created: kv.CreateRevision}
		if r.Value == nil {
			r.Value = []byte{}
		}
		if r.Created < 1 || r.Revision < r.Created || r.Revision > c.Revision {
			return c, fmt.Errorf("key %q, revisions %d and %d: %w", r.Key, r.Created, r.Revision, store.ErrCorrupt)
		}
		if kv.Lease != 0 {
			if at, ok := expiries[kv.Lease]; ok {
				r.Expires = at
			} else {
				continue // etcd deletes keys of leases that are gone
			}
		}
		c.Records = append(c.Records, r)
	}
	slices.SortFunc(c.Records, func(a, b *store.Record) int { return strings.Compare(a.Key, b.Key) })
	return c, nil
}

// latest returns the newest state of each key under the prefix, and the newest revision of all.
func (s *snapshotReader) latest(ctx context.Context, keys *bolt.Bucket, newest *int64) (map[string]*mvccpb.KeyValue, error) {
	latest := map[string]*mvccpb.KeyValue{}
	n := 0
	err := keys.ForEach(func(k, v []byte) error {
		if n++; n%batchRecords == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		revision, tombstone, err := decodeRevision(k)
		if err != nil {
			return err
		}
		*newest = max(*newest, revision)
		kv := new(mvccpb.KeyValue)
		if err := proto.Unmarshal(v, kv); err != nil {
			return fmt.Errorf("revision %d: %w: %w", revision, store.ErrCorrupt, err)
		}
		if !s.keys.Holds(kv.Key) {
			return nil
		}
		if tombstone {
			delete(latest, string(kv.Key))
			return nil
		}
		latest[string(kv.Key)] = kv
		return nil
	})
	return latest, err
}

// expiries returns when the leases end, counted from now: etcd stores what they have left, and waits as long after a start.
func (s *snapshotReader) expiries(b *bolt.Bucket) (map[int64]time.Time, error) {
	out := map[int64]time.Time{}
	if b == nil {
		return out, nil
	}
	return out, b.ForEach(func(k, v []byte) error {
		if len(k) != 8 {
			return fmt.Errorf("lease %x: %w", k, store.ErrCorrupt)
		}
		seconds, err := decodeLease(v)
		if err != nil {
			return err
		}
		out[int64(binary.BigEndian.Uint64(k))] = s.now.Add(time.Duration(seconds) * time.Second)
		return nil
	})
}
