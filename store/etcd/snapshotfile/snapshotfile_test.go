// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package snapshotfile

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd/keyspace"
)

// A content whose newest change was a delete, with two keys of one revision and one that expires.
func example() store.Content {
	return store.Content{Revision: 40, Records: []*store.Record{
		{Key: "/registry/a", Value: []byte("1"), Created: 3, Revision: 9},
		{Key: "/registry/b", Value: []byte{}, Created: 12, Revision: 12},
		{Key: "/registry/c", Value: []byte("3"), Created: 9, Revision: 9},
		{Key: "/registry/d", Value: []byte("4"), Created: 30, Revision: 30, Expires: time.Now().Add(time.Hour)},
	}}
}

func written(t *testing.T, prefix string, c store.Content) string {
	t.Helper()
	var out bytes.Buffer
	if err := Write(t.Context(), &out, t.TempDir(), prefix, c); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "snapshot.db")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var sameContent = []cmp.Option{cmpopts.IgnoreUnexported(store.Record{}), cmpopts.EquateApproxTime(2 * time.Minute)}

func TestSnapshotFile(t *testing.T) {
	for _, prefix := range []string{keyspace.DefaultPrefix, "/elsewhere"} {
		path := written(t, prefix, example())
		got, err := Read(t.Context(), path, prefix)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(example(), got, sameContent...); diff != "" {
			t.Errorf("%s: read (-wrote +read):\n%s", prefix, diff)
		}
		other, err := Read(t.Context(), path, "/other")
		if err != nil || len(other.Records) > 0 || other.Revision != 40 {
			t.Errorf("another prefix: %v, %v", other, err)
		}
	}
}

func TestSnapshotFileRefusesForeignKeys(t *testing.T) {
	c := store.Content{Revision: 2, Records: []*store.Record{{Key: "/own/a", Created: 2, Revision: 2}}}
	if err := Write(t.Context(), &bytes.Buffer{}, t.TempDir(), keyspace.DefaultPrefix, c); !errors.Is(err, store.ErrInvalid) {
		t.Errorf("a key outside of the prefix: %v", err)
	}
}

func TestSnapshotFileDamaged(t *testing.T) {
	path := written(t, keyspace.DefaultPrefix, example())
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"empty": {}, "cut": whole[:len(whole)-100], "without a sum": whole[:len(whole)-sha256.Size],
		"a bit": append(append(bytes.Clone(whole[:5000]), whole[5000]^1), whole[5001:]...),
	} {
		path := filepath.Join(t.TempDir(), "bad.db")
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(t.Context(), path, keyspace.DefaultPrefix); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// history writes a file as etcd does, with changes, tombstones and leases.
func history(t testing.TB, changes []*mvccpb.KeyValue, leases map[int64]int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		keys, err := tx.CreateBucket(keyBucket)
		if err != nil {
			return err
		}
		for i, kv := range changes {
			revision := encodeRevision(int64(i+2), 0)
			if kv.ModRevision == 0 {
				revision = append(revision, tombstoneMark)
			}
			raw, err := proto.Marshal(kv)
			if err != nil {
				return err
			}
			if err := keys.Put(revision, raw); err != nil {
				return err
			}
		}
		b, err := tx.CreateBucket(leaseBucket)
		for id, seconds := range leases {
			err = errors.Join(err, b.Put(binary.BigEndian.AppendUint64(nil, uint64(id)), appendLease(nil, id, seconds)))
		}
		return err
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := sign(path); err != nil {
		t.Fatal(err)
	}
	return path
}

func sign(path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(raw)
	return os.WriteFile(path, append(raw, sum[:]...), 0o600)
}

func TestSnapshotFileOfEtcd(t *testing.T) {
	kv := func(key, value string, created, revision, lease int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: created, ModRevision: revision, Lease: lease}
	}
	path := history(t, []*mvccpb.KeyValue{
		kv("/registry/a", "1", 2, 2, 0),
		kv("/registry/b", "1", 3, 3, 0),
		kv("/registry/a", "2", 2, 4, 0),
		kv("/registry/b", "", 0, 0, 0), // deleted
		kv("/registry/b", "again", 6, 6, 7),
		kv("/registry/c", "of a lease that is gone", 7, 7, 8),
		kv("/registry/d", "1", 8, 8, 0),
		kv("/registry/d", "", 0, 0, 0),
		kv("compact_rev_key", "5", 10, 10, 0),
	}, map[int64]int64{7: 600})
	got, err := Read(t.Context(), path, keyspace.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	want := store.Content{Revision: 10, Records: []*store.Record{
		{Key: "/registry/a", Value: []byte("2"), Created: 2, Revision: 4},
		{Key: "/registry/b", Value: []byte("again"), Created: 6, Revision: 6, Expires: time.Now().Add(10 * time.Minute)},
	}}
	if diff := cmp.Diff(want, got, sameContent...); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	for name, bad := range map[string]*mvccpb.KeyValue{
		"a revision of the future": kv("/registry/a", "1", 2, 5, 0),
		"created after":            kv("/registry/a", "1", 4, 2, 0),
		"never created":            kv("/registry/a", "1", 0, 2, 0),
	} {
		if _, err := Read(t.Context(), history(t, []*mvccpb.KeyValue{bad}, nil), keyspace.DefaultPrefix); !errors.Is(err, store.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzRead changes bytes of a file whose sum is right again.
func FuzzRead(f *testing.F) {
	path := history(f, []*mvccpb.KeyValue{
		{Key: []byte("/registry/a"), Value: []byte(strings.Repeat("x", 100)), CreateRevision: 2, ModRevision: 2, Lease: 1},
	}, map[int64]int64{1: 60})
	raw, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	raw = raw[:len(raw)-sha256.Size]
	for _, at := range []uint32{0, 16, 24, 4096, 4112, 8200, 12300} {
		f.Add(at, []byte{0xff, 0xff})
	}
	f.Fuzz(func(t *testing.T, at uint32, with []byte) {
		changed := bytes.Clone(raw)
		copy(changed[int(at)%len(changed):], with)
		path := filepath.Join(t.TempDir(), "db")
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := sign(path); err != nil {
			t.Fatal(err)
		}
		c, err := Read(t.Context(), path, keyspace.DefaultPrefix)
		if err == nil && c.Revision < 1 {
			t.Error(fmt.Sprint("revision ", c.Revision))
		}
	})
}
