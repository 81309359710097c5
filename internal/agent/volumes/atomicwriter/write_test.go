// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package atomicwriter

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
)

// What a volume holds before and after a write; alike has the same names as before.
var (
	before = map[string]string{"key": "old", "a/b": "old"}
	after  = map[string]string{"key": "new", "a/c": "new", "other": "new"}
	alike  = map[string]string{"key": "new", "a/b": "new"}
)

// files are files of the texts.
func files(texts map[string]string) map[string]File {
	out := map[string]File{}
	for name, text := range texts {
		out[name] = File{Data: []byte(text), Mode: 0o644}
	}
	return out
}

// see returns what users of a volume see, and how many directories hold contents.
func see(dir string) (map[string]string, int, error) {
	var failed failure
	texts := disktest.Read(&failed, dir)
	stamps, err := filepath.Glob(filepath.Join(dir, "..2*"))
	return texts, len(stamps), errors.Join(failed.error, err)
}

// failure is what read says.
type failure struct{ error }

func (f *failure) Fatal(args ...any) { f.error = errors.New(fmt.Sprint(args...)) }

// whole says what is wrong with a volume after a write of after in place of before: the contents are all old or all new, they are
// new unless the write failed, and a failed write leaves nothing else.
func whole(dir string, after map[string]string, wrote error) error {
	texts, stamps, err := see(dir)
	switch {
	case err != nil:
		return err
	case wrote == nil && (!maps.Equal(texts, after) || stamps != 1):
		return fmt.Errorf("the write succeeded, and the volume holds %v in %d directories", texts, stamps)
	case wrote != nil && texts["key"] == "old" && (!maps.Equal(texts, before) || stamps != 1):
		return fmt.Errorf("the write failed before its end, and the volume holds %v in %d directories: %w", texts, stamps, wrote)
	case texts["key"] != "old" && texts["key"] != "new":
		return fmt.Errorf("the volume holds %v", texts)
	}
	return nil
}

// A volume in memory may be full. Then a write fails, and the files that are there stay.
func TestWriteToAFullVolume(t *testing.T) {
	for _, after := range []map[string]string{after, alike} {
		disktest.OnThread(t, func() error { return fillUp(t.TempDir(), after) })
	}
}

// fillUp writes to volumes that have more and more room, until one has enough.
func fillUp(dir string, after map[string]string) error {
	for spare := range 32 {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "nr_inodes=64"); err != nil {
			return err
		}
		if _, err := Write(dir, files(before), nil, epoch); err != nil {
			return err
		}
		var used unix.Statfs_t
		if err := unix.Statfs(dir, &used); err != nil {
			return err
		}
		limit := fmt.Sprintf("nr_inodes=%d", int(used.Files-used.Ffree)+spare)
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT, limit); err != nil {
			return fmt.Errorf("%s: %w", limit, err)
		}
		_, err := Write(dir, files(after), nil, epoch.AddDate(1, 0, 0))
		if bad := whole(dir, after, err); bad != nil {
			return fmt.Errorf("%s: %w", limit, bad)
		}
		if err := unix.Unmount(dir, 0); err != nil {
			return err
		}
		switch {
		case err == nil && spare == 0:
			return errors.New("a full volume was written")
		case err == nil:
			return nil
		case !errors.Is(err, unix.ENOSPC):
			return err
		}
	}
	return errors.New("no write succeeds")
}

// The same where memory for the contents ends.
func TestWriteOfMoreThanFits(t *testing.T) {
	dir := t.TempDir()
	disktest.OnThread(t, func() error {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=65536"); err != nil {
			return err
		}
		if _, err := Write(dir, files(before), nil, epoch); err != nil {
			return err
		}
		_, err := Write(dir, contents(strings.Repeat("x", 1<<17)), nil, epoch.AddDate(1, 0, 0))
		if !errors.Is(err, unix.ENOSPC) {
			return fmt.Errorf("too much was written: %w", err)
		}
		return whole(dir, alike, err)
	})
}

// A node that has no file descriptors left says so, and does not take a volume that it could not read for one that is right.
func TestWriteWithoutDescriptors(t *testing.T) {
	disktest.FewFiles(t, func(n uint64) error {
		dir := filepath.Join(t.TempDir(), fmt.Sprint(n))
		var raised, low unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
			return err
		}
		raised = unix.Rlimit{Cur: low.Max, Max: low.Max}
		if err := errors.Join(unix.Setrlimit(unix.RLIMIT_NOFILE, &raised), os.Mkdir(dir, 0o755)); err != nil {
			return err
		}
		if _, err := Write(dir, files(before), nil, epoch); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
			return err
		}
		_, wrote := Write(dir, files(after), nil, epoch.AddDate(1, 0, 0))
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
			return err
		}
		if bad := whole(dir, after, wrote); bad != nil {
			t.Errorf("with %d files: %v", n, bad)
		}
		return wrote
	})
}

// Where something is mounted on what Write has to replace, it fails and says on what.
func TestWriteAgainstMounts(t *testing.T) {
	for name, c := range map[string]struct {
		at   string // a directory, or a file if it ends with a letter
		want string
	}{
		"the new link":         {"..data_tmp/in/", "remove stale link of volume"},
		"the link":             {"..data/in/", "remove what is not the link of volume"},
		"the link itself":      {"..data", "swap link of volume"},
		"a file's name":        {"key/in/", "remove what has the name of file key"},
		"old contents":         {"..2025_01_01_00_00_00.1/in/", "remove ..2025_01_01_00_00_00.1 of volume"},
		"a file of a stranger": {"stranger", "remove stranger of volume"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			disktest.OnThread(t, func() error {
				at := filepath.Join(dir, c.at)
				made := os.MkdirAll(filepath.Dir(at), 0o755)
				if strings.HasSuffix(c.at, "/") {
					made = errors.Join(made, os.MkdirAll(at, 0o755), unix.Mount("tmpfs", at, "tmpfs", 0, ""))
				} else {
					made = errors.Join(made, os.WriteFile(at, nil, 0o600), unix.Mount("/dev/null", at, "", unix.MS_BIND, ""))
				}
				if made != nil {
					return made
				}
				if _, err := Write(dir, contents("text"), nil, epoch); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("error %w, want %s", err, c.want)
				}
				return nil
			})
		})
	}
}

func TestWriteToAVolumeThatCannotBe(t *testing.T) {
	if _, err := Write(filepath.Join(t.TempDir(), "none"), contents("text"), nil, epoch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
	nothing := func(string) error { return nil }
	disktest.OnReadOnly(t, nothing, func(dir string) error {
		if _, err := Write(dir, contents("text"), nil, epoch); !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("a read-only directory: %w", err)
		}
		return nil
	})
}

// Files that cannot be given to their user and group are not given to containers at all.
func TestWriteOfFilesThatCannotBeGivenAway(t *testing.T) {
	file := map[string]File{"key": {Data: []byte("text"), Mode: 0o600, Owner: new(int64(1234))}}
	for name, c := range map[string]struct {
		missing uint
		files   map[string]File
		group   *int64
		want    string
	}{
		"to a user":       {unix.CAP_CHOWN, file, nil, "give file key away"},
		"to a group":      {unix.CAP_CHOWN, contents("text"), new(int64(1234)), "give file key away"},
		"with their mode": {unix.CAP_FOWNER, file, nil, "set mode of key"},
	} {
		dir := t.TempDir()
		disktest.OnThread(t, func() error {
			if err := disktest.Drop(c.missing); err != nil {
				return err
			}
			if _, err := Write(dir, c.files, c.group, epoch); err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("%s: error %w, want %s", name, err, c.want)
			}
			if texts, stamps, err := see(dir); err != nil || len(texts) > 0 || stamps > 0 {
				return fmt.Errorf("%s: %v and %d directories are left; %w", name, texts, stamps, err)
			}
			return nil
		})
	}
}

// The user and the group of a file are those that it is to have, and root where it says nothing.
func TestOwnersOfFiles(t *testing.T) {
	for name, c := range map[string]struct {
		owner, group *int64
		uid, gid     uint32
		mode         os.FileMode
	}{
		"nobody's":   {nil, nil, 0, 0, 0o600},
		"a user's":   {new(int64(1234)), nil, 1234, 0, 0o600},
		"a group's":  {nil, new(int64(2345)), 0, 2345, 0o640},
		"both's":     {new(int64(1234)), new(int64(2345)), 1234, 2345, 0o640},
		"root's":     {new(int64(0)), nil, 0, 0, 0o600},
		"root group": {nil, new(int64(0)), 0, 0, 0o640},
	} {
		dir := t.TempDir()
		disktest.OnThread(t, func() error {
			if err := unix.Setfsgid(54321); err != nil { // new files are not of root's group by chance
				return err
			}
			if c.group == nil {
				c.gid = 54321
			}
			if _, err := Write(dir, map[string]File{"key": {Mode: 0o600, Owner: c.owner}}, c.group, epoch); err != nil {
				return err
			}
			var stat unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, "key"), &stat); err != nil {
				return err
			}
			if stat.Uid != c.uid || stat.Gid != c.gid || os.FileMode(stat.Mode).Perm() != c.mode {
				return fmt.Errorf("%s: owned by %d:%d with mode %o", name, stat.Uid, stat.Gid, stat.Mode)
			}
			return nil
		})
	}
}

// What differs from what is to be there is written anew, whichever way it differs; what differs by the group's bits alone is not.
func TestWriteSeesChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(stamp string) error
		changed bool
	}{
		"nothing":             {func(string) error { return nil }, false},
		"the group may read":  {func(s string) error { return os.Chmod(s+"/key", 0o640) }, false},
		"others may read":     {func(s string) error { return os.Chmod(s+"/key", 0o604) }, true},
		"a byte more":         {func(s string) error { return os.WriteFile(s+"/key", []byte("old."), 0) }, true},
		"a byte less":         {func(s string) error { return os.WriteFile(s+"/key", []byte("ol"), 0) }, true},
		"another byte":        {func(s string) error { return os.WriteFile(s+"/key", []byte("odd"), 0) }, true},
		"a file more":         {func(s string) error { return os.WriteFile(s+"/more", nil, 0o600) }, true},
		"a file less":         {func(s string) error { return os.Remove(s + "/key") }, true},
		"a file's other name": {func(s string) error { return os.Rename(s+"/key", s+"/kex") }, true},
		"a directory for it":  {func(s string) error { return errors.Join(os.Remove(s+"/key"), os.Mkdir(s+"/key", 0o600)) }, true},
		"all of them":         {os.RemoveAll, true},
	} {
		dir := t.TempDir()
		want := map[string]File{"key": {Data: []byte("old"), Mode: 0o600}}
		if changed, err := Write(dir, want, nil, epoch); err != nil || !changed {
			t.Fatal(changed, err)
		}
		stamp, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.change(stamp); err != nil {
			t.Fatal(err)
		}
		if changed, err := Write(dir, want, nil, epoch); err != nil || changed != c.changed {
			t.Errorf("%s: changed %v, %v", name, changed, err)
		}
		texts, stamps, err := see(dir)
		if err != nil || !maps.Equal(texts, map[string]string{"key": "old"}) || stamps != 1 {
			t.Errorf("%s: %v in %d directories, %v", name, texts, stamps, err)
		}
	}
}

// Containers of all users can read a volume's directories and only the node writes there, whatever the node's umask is.
func TestModesOfDirectories(t *testing.T) {
	dir := t.TempDir()
	was := unix.Umask(0o077)
	_, err := Write(dir, files(before), nil, epoch)
	unix.Umask(was)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".", "..data/"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != os.ModeDir|0o755 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

func TestNamesOfFiles(t *testing.T) {
	for name, ok := range map[string]bool{
		"a": true, "a/b": true, "a..b": true, "a/..b": true, "a/b..": true, ".a": true,
		"": false, "/a": false, "..": false, "..a": false, "../a": false, "a/..": false, "a/../b": false,
		strings.Repeat("a/", 2047) + "ab": true, strings.Repeat("a/", 2047) + "abc": false,
	} {
		if err := checkName(name); (err == nil) != ok {
			t.Errorf("%.10q, of %d bytes: %v", name, len(name), err)
		}
	}
}

// The names that users see are there all the time while contents change.
func TestNamesStay(t *testing.T) {
	dir := t.TempDir()
	var was os.FileInfo
	for _, texts := range []map[string]string{before, alike} {
		if _, err := Write(dir, files(texts), nil, epoch); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(filepath.Join(dir, "key"))
		if err != nil {
			t.Fatal(err)
		}
		if was != nil && (!os.SameFile(info, was) || !info.ModTime().Equal(was.ModTime())) {
			t.Error("the name was removed and made again")
		}
		was = info
	}
}

// A node lives for months, and each write that left a file open would count.
func TestNothingIsLeftOpen(t *testing.T) {
	dir := t.TempDir()
	texts := []map[string]string{before, after}
	if n := disktest.LeftOpen(t, func() {
		for range 3 {
			for range 2 {
				if _, err := Write(dir, files(texts[0]), nil, epoch); err != nil {
					t.Fatal(err)
				}
			}
			slices.Reverse(texts)
		}
	}); n != 0 {
		t.Errorf("%d files", n)
	}
}
