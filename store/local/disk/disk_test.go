// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disk_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local/disk"
)

func content(t *testing.T, d disk.FS, name string) []byte {
	t.Helper()
	f, err := d.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
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

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFS does the same with each file system.
func TestFS(t *testing.T) {
	for name, d := range map[string]disk.FS{"os": disk.OS{}, "mem": disk.NewMem()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "a", "b")
			check(t, d.MkdirAll(dir))
			one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
			if _, err := d.Open(one); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("open of nothing: %v", err)
			}
			f, err := d.Create(one)
			check(t, err)
			check(t, f.Allocate(10))
			_, err = f.WriteAt([]byte("hello"), 2)
			check(t, err)
			check(t, f.Datasync())
			if got := content(t, d, one); !bytes.Equal(got, []byte("\x00\x00hello\x00\x00\x00")) {
				t.Errorf("%q", got)
			}
			check(t, f.Truncate(4))
			check(t, f.Allocate(6))
			check(t, f.Sync())
			check(t, f.Close())
			if got := content(t, d, one); !bytes.Equal(got, []byte("\x00\x00he\x00\x00")) {
				t.Errorf("%q", got)
			}
			check(t, d.Rename(one, two))
			check(t, d.SyncDir(dir))
			lock, err := d.Lock(filepath.Join(dir, "lock"))
			check(t, err)
			if _, err := d.Lock(filepath.Join(dir, "lock")); !errors.Is(err, store.ErrLocked) {
				t.Errorf("second lock: %v", err)
			}
			check(t, lock.Close())
			lock, err = d.Lock(filepath.Join(dir, "lock"))
			check(t, err)
			check(t, lock.Close())
			names, err := d.List(dir)
			if check(t, err); !slices.Equal(names, []string{"lock", "two"}) {
				t.Errorf("%v", names)
			}
			check(t, d.Remove(two))
			if err := d.Remove(two); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("removing again: %v", err)
			}
		})
	}
}

// TestCrash shows that what was synced survives, and that of the rest each outcome comes with some seed.
func TestCrash(t *testing.T) {
	m := disk.NewMem()
	f, err := m.Create("d/synced")
	check(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte("a"), 1000), 0)
	check(t, err)
	check(t, f.Sync())
	check(t, m.SyncDir("d"))
	_, err = f.WriteAt(bytes.Repeat([]byte("b"), 2000), 500)
	check(t, err)
	_, err = m.Create("d/unsynced")
	check(t, err)
	var lost, whole, torn, named, unnamed bool
	for seed := range uint64(100) {
		c := m.Crash(seed)
		got := content(t, c, "d/synced")
		if !bytes.Equal(got, content(t, m.Crash(seed), "d/synced")) {
			t.Fatalf("seed %d gives two outcomes", seed)
		}
		if len(got) < 1000 || !bytes.Equal(got[:500], bytes.Repeat([]byte("a"), 500)) {
			t.Fatalf("seed %d: synced bytes are gone", seed)
		}
		switch bytes.Count(got, []byte("b")) {
		case 0:
			lost = true
		case 2000:
			whole = true
		default:
			torn = true
		}
		names, err := c.List("d")
		check(t, err)
		named, unnamed = named || len(names) == 2, unnamed || len(names) == 1
	}
	if !lost || !whole || !torn || !named || !unnamed {
		t.Errorf("lost %v, whole %v, torn %v, named %v, unnamed %v", lost, whole, torn, named, unnamed)
	}
}
