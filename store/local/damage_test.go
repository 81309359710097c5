// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/local/disk"
	"github.com/mortise-dev/mortise/store/mvcc"
	"github.com/mortise-dev/mortise/store/storetest"
)

// files makes a store in memory with n commits, closes it, and returns what its directory holds.
func files(t testing.TB, n int, options local.Options) map[string][]byte {
	t.Helper()
	m := disk.NewMem()
	options.Disk, options.Clock = m, storetest.NewClock()
	e, err := local.Open("data", options)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		op := store.Op{Key: fmt.Sprint("/r/pods/", i%10), Value: fmt.Appendf(nil, "value %d", i), Expect: store.Any}
		if i%5 == 4 {
			op.TTL = time.Hour
		}
		if _, _, err := e.Commit(context.Background(), op); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := m.List("data")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for _, name := range names {
		all[name] = read(t, m, name)
	}
	return all
}

func read(t testing.TB, m *disk.Mem, name string) []byte {
	t.Helper()
	f, err := m.Open(filepath.Join("data", name))
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, size))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// diskOf makes a disk that holds the files.
func diskOf(t testing.TB, files map[string][]byte) *disk.Mem {
	t.Helper()
	m := disk.NewMem()
	for name, content := range files {
		f, err := m.Create(filepath.Join("data", name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// with returns the files with one changed.
func with(files map[string][]byte, name string, content []byte) map[string][]byte {
	changed := map[string][]byte{name: content}
	for n, c := range files {
		if n != name {
			changed[n] = c
		}
	}
	return changed
}

// open opens what the files hold, and returns the revision.
func open(t testing.TB, files map[string][]byte) (int64, error) {
	t.Helper()
	e, err := local.Open("data", local.Options{Disk: diskOf(t, files), Clock: storetest.NewClock(), SegmentBytes: 4 << 10})
	if err != nil {
		return 0, err
	}
	revision := e.Revision()
	if _, _, err := e.Commit(context.Background(), store.Op{Key: "/after", Value: []byte("x")}); err != nil {
		t.Errorf("commit: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	return revision, nil
}

func newest(files map[string][]byte, prefix string) (newest string) {
	for name := range files {
		if strings.HasPrefix(name, prefix) && name > newest {
			newest = name
		}
	}
	return newest
}

// TestTruncated cuts the log at every byte: what is left is a store at an earlier revision.
func TestTruncated(t *testing.T) {
	all := files(t, 20, local.Options{})
	log := newest(all, "wal-")
	last := int64(1)
	for size := range all[log] {
		for _, zeros := range []int{0, 100} {
			cut := append(bytes.Clone(all[log][:size]), make([]byte, zeros)...)
			revision, err := open(t, with(all, log, cut))
			if err != nil {
				t.Fatalf("cut to %d bytes and %d zeros: %v", size, zeros, err)
			}
			if revision < last || revision > last+1 {
				t.Fatalf("cut to %d bytes and %d zeros: revision %d after %d", size, zeros, revision, last)
			}
			last = revision
		}
	}
	if last < 20 { // 21 where the cut takes only padding
		t.Errorf("the longest cut leaves revision %d", last)
	}
}

// TestCorrupt changes every byte of a log and of a checkpoint: the store refuses to open and names the file and offset,
// save where the last frame is hit, which cannot be told from a torn one.
func TestCorrupt(t *testing.T) {
	all := files(t, 20, local.Options{})
	log := newest(all, "wal-")
	for i := range all[log] {
		changed := bytes.Clone(all[log])
		changed[i] ^= 0x41
		revision, err := open(t, with(all, log, changed))
		if err == nil && revision < 20 {
			t.Fatalf("byte %d changed: opens at revision %d of 21", i, revision)
		}
		if err != nil && (!errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), log+" at offset ")) {
			t.Fatalf("byte %d changed: %v", i, err)
		}
	}
	restored := diskOf(t, nil)
	var backup bytes.Buffer
	if _, err := local.Backup(context.Background(), "data", &backup,
		local.Options{Disk: diskOf(t, all), Clock: storetest.NewClock()}); err != nil {
		t.Fatal(err)
	}
	if _, err := local.Restore(context.Background(), bytes.NewReader(backup.Bytes()), "data", 0, local.Options{Disk: restored}); err != nil {
		t.Fatal(err)
	}
	all = map[string][]byte{}
	names, _ := restored.List("data")
	for _, name := range names {
		all[name] = read(t, restored, name)
	}
	checkpoint := newest(all, "checkpoint-")
	for i := range all[checkpoint] {
		changed := bytes.Clone(all[checkpoint])
		changed[i] ^= 0x41
		if _, err := open(t, with(all, checkpoint, changed)); !errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrFormat) ||
			!strings.Contains(err.Error(), checkpoint) {
			t.Fatalf("byte %d of the checkpoint changed: %v", i, err)
		}
		if _, err := open(t, with(all, checkpoint, all[checkpoint][:i])); !errors.Is(err, store.ErrCorrupt) {
			t.Fatalf("checkpoint cut to %d: %v", i, err)
		}
		if _, err := local.Restore(context.Background(), bytes.NewReader(changed), "data", 0, local.Options{Disk: disk.NewMem()}); !errors.Is(err,
			store.ErrCorrupt) {
			t.Fatalf("byte %d of the backup changed: %v", i, err)
		}
	}
}

// TestMissing takes away each file of a store with several segments and a checkpoint.
func TestMissing(t *testing.T) {
	all := files(t, 400, local.Options{SegmentBytes: 1 << 10, Options: mvcc.Options{HistoryRevisions: 100}})
	logs := 0
	for name := range all {
		if strings.HasPrefix(name, "wal-") {
			logs++
		}
		less := with(all, name, nil)
		delete(less, name)
		_, err := open(t, less)
		switch {
		case name == "lock", name == newest(all, "wal-"):
			if err != nil {
				t.Errorf("without %s: %v", name, err)
			}
		case name == "format":
			if !errors.Is(err, store.ErrFormat) {
				t.Errorf("without %s: %v", name, err)
			}
		case !errors.Is(err, store.ErrCorrupt) || !strings.Contains(err.Error(), "missing"):
			t.Errorf("without %s: %v", name, err)
		}
	}
	if logs < 3 || newest(all, "checkpoint-") == "" {
		t.Errorf("%d segments, checkpoint %q", logs, newest(all, "checkpoint-"))
	}
}

// TestForeign opens directories that are not stores, or not of a known format.
func TestForeign(t *testing.T) {
	for name, content := range map[string]string{
		"format": "mortise store 2\nid 00\n",
		"notes":  "my diary",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := local.Open(dir, local.Options{})
		if !errors.Is(err, store.ErrFormat) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("%s: the directory has been changed: %v", name, entries)
		}
	}
}

// TestLocked opens a store twice.
func TestLocked(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	e, err := local.Open(dir, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = local.Open(dir, local.Options{})
	if !errors.Is(err, store.ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	if _, err = local.Check(ctx, dir, local.Options{}); !errors.Is(err, store.ErrLocked) {
		t.Errorf("check: %v", err)
	}
	if err := e.Check(ctx); err != nil {
		t.Errorf("check of the one in use: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err = local.Check(ctx, filepath.Join(dir, "none"), local.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("check of nothing: %v", err)
	}
}

// TestBackupOfThePast writes backups of older states, of a store in use and of a directory, by revision and by time.
func TestBackupOfThePast(t *testing.T) {
	ctx := t.Context()
	dir := t.TempDir()
	clock := storetest.NewClock() // it is midnight
	options := local.Options{Options: mvcc.Options{MarkEvery: -1}, Clock: clock}
	e, err := local.Open(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	commit := func(op store.Op) int64 {
		t.Helper()
		op.Expect = store.Any
		revision, _, err := e.Commit(ctx, op)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	commit(store.Op{Key: "/a", Value: []byte("1")})
	before := commit(store.Op{Key: "/b", Value: []byte("1")})
	at := clock.Now()
	clock.Advance(time.Minute)
	commit(store.Op{Key: "/a", Value: []byte("2")})
	commit(store.Op{Key: "/b"})
	newest := commit(store.Op{Key: "/c", Value: []byte("1")})
	restored := func(how string, revision int64, backup *bytes.Buffer, err error, want string) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", how, err)
			return
		}
		to := filepath.Join(t.TempDir(), "store")
		if got, err := local.Restore(ctx, backup, to, 100, local.Options{}); err != nil || got != revision+100 {
			t.Errorf("%s: restored at %d, backed up at %d: %v", how, got, revision, err)
			return
		}
		c, err := local.ReadContent(ctx, to, local.Options{})
		got := ""
		for _, r := range c.Records {
			got += r.Key + "=" + string(r.Value)
		}
		if err != nil || got != want || revision != before && want == "/a=1/b=1" {
			t.Errorf("%s: %s at %d, want %s: %v", how, got, revision, want, err)
		}
	}
	check := func(how string, back func(*bytes.Buffer, store.Point) (int64, error)) {
		t.Helper()
		for _, c := range []struct {
			state store.Point
			want  string
		}{{store.Point{Revision: before}, "/a=1/b=1"}, {store.Point{Time: at.Add(time.Second)}, "/a=1/b=1"}, {store.Point{}, "/a=2/c=1"},
			{store.Point{Revision: newest}, "/a=2/c=1"}, {store.Point{Time: clock.Now()}, "/a=2/c=1"}} {
			var backup bytes.Buffer
			revision, err := back(&backup, c.state)
			restored(fmt.Sprint(how, c.state), revision, &backup, err, c.want)
		}
		for _, c := range []struct {
			state store.Point
			want  error
			says  string
		}{{store.Point{Revision: newest + 1}, store.ErrFuture, fmt.Sprintf("the store is at revision %d", newest)},
			{store.Point{Time: clock.Now().Add(time.Second)}, store.ErrFuture, "00:01:01"},
			{store.Point{Time: at.Add(-time.Hour)}, store.ErrCompacted, "23:00:00"}} {
			var backup bytes.Buffer
			if _, err := back(&backup, c.state); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || backup.Len() > 0 {
				t.Errorf("%s%v: %d bytes, %v", how, c.state, backup.Len(), err)
			}
		}
	}
	check("in use: ", func(b *bytes.Buffer, state store.Point) (int64, error) { return e.BackupAt(ctx, b, state) })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	check("directory: ", func(b *bytes.Buffer, state store.Point) (int64, error) {
		return local.BackupAt(ctx, dir, b, state, options)
	})
	if e, err = local.Open(dir, options); err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := e.Compact(ctx, before+1); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if _, err := e.BackupAt(ctx, &backup, store.Point{Revision: before}); !errors.Is(err, store.ErrCompacted) || backup.Len() > 0 ||
		!strings.Contains(err.Error(), fmt.Sprintf("the history begins at revision %d", before+1)) {
		t.Errorf("a compacted revision: %d bytes, %v", backup.Len(), err)
	}
	c := store.Content{Revision: 7, Records: []*store.Record{{Key: "/a", Value: []byte("1"), Revision: 5, Created: 5}}}
	before = 7
	backup.Reset()
	restored("of another engine", 7, &backup, local.WriteBackup(ctx, &backup, 7, c.All(), local.Options{}), "/a=1")
}

// TestBackup writes a backup of a store in use, and restores it.
func TestBackup(t *testing.T) {
	ctx := context.Background()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "new")
	e, err := local.Open(from, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(e)
	for i := range 30 {
		var ops []store.Op
		for j := range 100 {
			ops = append(ops, store.Op{Key: fmt.Sprintf("/%d/%d", i, j), Value: make([]byte, 100*i+j)})
		}
		if _, _, err := s.Commit(ctx, ops...); err != nil {
			t.Fatal(err)
		}
	}
	var backup bytes.Buffer
	revision, err := s.Backup(ctx, &backup)
	if err != nil || revision != 31 {
		t.Fatal(revision, err)
	}
	want, err := s.List(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if _, err := local.Backup(ctx, from, &again, local.Options{}); err != nil || !bytes.Equal(backup.Bytes()[32:300], again.Bytes()[32:300]) &&
		again.Len() != backup.Len() {
		t.Errorf("backup of the directory: %d bytes, %v, of the engine %d", again.Len(), err, backup.Len())
	}
	if revision, err = local.Restore(ctx, &backup, to, 1000, local.Options{}); err != nil || revision != 1031 {
		t.Fatal(revision, err)
	}
	if _, err = local.Restore(ctx, &again, to, 0, local.Options{}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("restore over a store: %v", err)
	}
	e, err = local.Open(to, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	have, err := e.Range(ctx, store.Range{})
	if err != nil || have.Revision != 1031 || len(have.Records) != len(want.Records) {
		t.Fatal(have.Revision, len(have.Records), err)
	}
	for i, r := range have.Records {
		if w := want.Records[i]; r.Key != w.Key || !bytes.Equal(r.Value, w.Value) || r.Revision != w.Revision || r.Created != w.Created {
			t.Fatalf("%s at %d, was %s at %d", r.Key, r.Revision, w.Key, w.Revision)
		}
	}
	if _, err := e.Watch(ctx, "", 31); !errors.Is(err, store.ErrCompacted) {
		t.Errorf("watch from before the bump: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestNoSpace fills the disk and empties it again: commits fail and then succeed, without opening again.
func TestNoSpace(t *testing.T) {
	ctx := context.Background()
	m := disk.NewMem()
	full := false
	e, err := local.Open("data", local.Options{Disk: m, Clock: storetest.NewClock(), SegmentBytes: 1 << 10})
	if err != nil {
		t.Fatal(err)
	}
	commit := func() (int64, error) {
		revision, _, err := e.Commit(ctx, store.Op{Key: "/a", Value: make([]byte, 600), Expect: store.Any})
		return revision, err
	}
	m.Hook = func(op, _ string) error {
		if full && op == "allocate" {
			return syscall.ENOSPC
		}
		return nil
	}
	if revision, err := commit(); revision != 2 || err != nil {
		t.Fatal(revision, err)
	}
	full = true
	for range 3 {
		if _, err := commit(); !errors.Is(err, store.ErrNoSpace) {
			t.Fatalf("on a full disk: %v", err)
		}
	}
	if r, revision, err := e.Get(ctx, "/a"); revision != 2 || r == nil || r.Revision != 2 || err != nil {
		t.Fatal(r, revision, err)
	}
	full = false
	if revision, err := commit(); revision != 3 || err != nil {
		t.Fatal(revision, err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if report, err := local.Check(ctx, "data", local.Options{Disk: m}); err != nil || report.Revision != 3 {
		t.Fatal(report, err)
	}
}

// TestBounded overwrites few keys for long: the disk stays small.
func TestBounded(t *testing.T) {
	ctx := context.Background()
	m := disk.NewMem()
	options := local.Options{Disk: m, Clock: storetest.NewClock(), SegmentBytes: 4 << 10, Options: mvcc.Options{HistoryRevisions: 50}}
	e, err := local.Open("data", options)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		if _, _, err := e.Commit(ctx, store.Op{Key: fmt.Sprint("/", i%20), Value: make([]byte, 200), Expect: store.Any}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := m.List("data")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, name := range names {
		total += len(read(t, m, name))
	}
	// 1.3 MB were written. A checkpoint may have been interrupted by the close, so there is room for one more.
	if total > 150<<10 {
		t.Errorf("%d bytes on disk in %v", total, names)
	}
	report, err := local.Check(ctx, "data", options)
	if err != nil || report.Keys != 20 || report.Revision != 5001 || report.Compacted < 4900 {
		t.Errorf("%+v, %v", report, err)
	}
}
