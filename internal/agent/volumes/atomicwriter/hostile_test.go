// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package atomicwriter

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func contents(text string) map[string]File {
	return map[string]File{"key": {Data: []byte(text), Mode: 0o644}}
}

// A container that could write into its volume led the node to a directory of the host, which the node then removed.
func TestWriteDoesNotFollowTheDataLink(t *testing.T) {
	outside, check := disktest.HostDir(t)
	for _, target := range []string{outside, "../" + filepath.Base(outside), "..", "."} {
		dir := filepath.Join(filepath.Dir(outside), t.Name()+strings.NewReplacer("/", "_").Replace(target))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Write(dir, contents("old"), nil, epoch); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, "..data")), os.Symlink(target, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
		if _, err := Write(dir, contents("new"), nil, epoch); err != nil {
			t.Errorf("..data → %s: %v", target, err)
		}
		check()
		if diff := cmp.Diff(map[string]string{"key": "new"}, disktest.Read(t, dir)); diff != "" {
			t.Errorf("..data → %s (-want +got)\n%s", target, diff)
		}
	}
}

// A container exchanges the volume's directories and links with links that lead out, while the node writes.
func TestWriteRaces(t *testing.T) {
	outside, check := disktest.HostDir(t)
	dir := t.TempDir()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				return
			}
			for _, e := range entries {
				evil := filepath.Join(dir, "evil")
				_ = os.Symlink(outside, evil)
				_ = unix.Renameat2(unix.AT_FDCWD, evil, unix.AT_FDCWD, filepath.Join(dir, e.Name()), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for i := range 100 {
		_, _ = Write(dir, contents(strings.Repeat("x", i)), nil, epoch) // it may fail, and be tried again
	}
	close(stop)
	<-stopped
	check()
	if err := os.RemoveAll(filepath.Join(dir, "evil")); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(dir, contents("last"), nil, epoch); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"key": "last"}, disktest.Read(t, dir)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestWriteRepairsWhatContainersMade(t *testing.T) {
	outside, check := disktest.HostDir(t)
	for name, spoil := range map[string]func(dir, stamp string) error{
		"a directory for ..data": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/..data"), os.MkdirAll(dir+"/..data/full", 0o777))
		},
		"a FIFO for ..data": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/..data"), unix.Mkfifo(dir+"/..data", 0o666))
		},
		"a directory for ..data_tmp": func(dir, _ string) error { return os.MkdirAll(dir+"/..data_tmp/full", 0o777) },
		"a link out for a key": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/key"), os.Symlink(outside+"/precious", dir+"/key"))
		},
		"a directory for a key": func(dir, _ string) error {
			return errors.Join(os.Remove(dir+"/key"), os.MkdirAll(dir+"/key/full", 0o777))
		},
		"a FIFO for a file": func(_, stamp string) error {
			return errors.Join(os.Remove(stamp+"/key"), unix.Mkfifo(stamp+"/key", 0o644))
		},
		"a link out for a file": func(_, stamp string) error {
			return errors.Join(os.Remove(stamp+"/key"), os.Symlink(outside+"/precious", stamp+"/key"))
		},
		"a huge file": func(_, stamp string) error { return os.Truncate(stamp+"/key", 1<<40) },
		"a link out for the directory": func(dir, stamp string) error {
			return errors.Join(os.RemoveAll(stamp), os.Symlink(outside, stamp))
		},
		"a directory for all to write": func(dir, _ string) error { return os.Chmod(dir, 0o777) },
	} {
		dir := t.TempDir()
		if _, err := Write(dir, contents("text"), nil, epoch); err != nil {
			t.Fatal(err)
		}
		stamp, err := os.Readlink(dir + "/..data")
		if err != nil {
			t.Fatal(err)
		}
		if err := spoil(dir, filepath.Join(dir, stamp)); err != nil && !strings.Contains(err.Error(), "file too large") {
			t.Fatal(err)
		}
		if _, err := Write(dir, contents("text"), nil, epoch); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		check()
		if diff := cmp.Diff(map[string]string{"key": "text"}, disktest.Read(t, dir)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
	}
}

// Nothing is left of writes that were interrupted, and of files that somebody else made.
func TestWriteSweeps(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(dir+"/..2025_01_01_00_00_00.1/key", 0o755),
		os.WriteFile(dir+"/foreign", nil, 0o644),
		os.Symlink("..data/gone", dir+"/gone"),
		os.Mkdir(dir+"/of-a-subpath", 0o755),
	); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(dir, contents("text"), nil, epoch); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !stampName.MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	if diff := cmp.Diff([]string{"..data", "key", "of-a-subpath"}, names); diff != "" || len(entries) != 4 {
		t.Errorf("%d entries (-want +got)\n%s", len(entries), diff)
	}
}

// After any number of writes the volume holds exactly the last one's files.
func TestWriteHoldsTheLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "volume")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		payload := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c", "d/e", "d/f", "g/h/i"}), rapid.StringN(0, 3, 3), 0, 5)
		for range rapid.IntRange(1, 4).Draw(t, "writes") {
			want := payload.Draw(t, "files")
			files := map[string]File{}
			for name, text := range want {
				files[name] = File{Data: []byte(text), Mode: 0o644}
			}
			if _, err := Write(dir, files, nil, epoch); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, disktest.Read(t, dir)); diff != "" {
				t.Fatalf("(-want +got)\n%s", diff)
			}
			changed, err := Write(dir, files, nil, epoch)
			if err != nil || changed {
				t.Fatalf("the same again: changed %v, %v", changed, err)
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			stamps := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !e.IsDir() })
			if len(stamps) > 1 {
				t.Fatalf("old contents are left: %v", stamps)
			}
		}
	})
}

func TestWriteRefusesNamesThatLeave(t *testing.T) {
	for _, name := range []string{"", "/etc/passwd", "../x", "a/../../x", "..data"} {
		if _, err := Write(t.TempDir(), map[string]File{name: {}}, nil, epoch); err == nil {
			t.Errorf("name %q was taken", name)
		}
	}
}
