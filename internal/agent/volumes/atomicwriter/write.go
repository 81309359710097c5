// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package atomicwriter writes the files of volumes whose contents come from the API (configMap, secret, projected, downwardAPI). [Write]
// replaces one symbolic link, so that a reader sees all of the old files or all of the new ones. [Selection] selects files from an object's
// data.
package atomicwriter

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// File is one file of a volume.
type File struct {
	Data []byte
	Mode int32
	// Owner is a user ID, or nil for root.
	Owner *int64
}

const (
	dataLink = "..data"
	newLink  = "..data_tmp"
)

// stampName matches the names of the directories in which Write stores the files.
var stampName = regexp.MustCompile(`^\.\.[0-9]{4}(_[0-9]{2}){5}\.[0-9]{1,20}$`)

// Write makes the directory contain exactly the files, atomically: it writes the files into a new directory, and one rename makes the link
// ..data point to it. The names that users see are links into ..data:
//
//	dir/key            → ..data/key
//	dir/..data         → ..2026_01_02_03_04_05.123456789
//
// It returns whether anything changed. With a group, the group can read the files.
//
// Write does not trust the contents of the directory: containers of older versions could write there. It never leaves the directory,
// accepts ..data only if it points to a name that Write gives, and replaces links and files that it would not have made.
func Write(dir string, files map[string]File, group *int64, now time.Time) (bool, error) {
	for name := range files {
		if err := checkName(name); err != nil {
			return false, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false, fmt.Errorf("open volume: %w", err)
	}
	defer root.Close()
	// Only the node may write there, even if a container has a writable mount.
	if err := root.Chmod(".", 0o755); err != nil {
		return false, fmt.Errorf("set mode of volume: %w", err)
	}
	current := currentStamp(root)
	changed := current == "" || !same(root, current, files)
	if changed {
		if current, err = replace(root, files, group, now); err != nil {
			return false, err
		}
	}
	if err := linkNames(root, files); err != nil {
		return false, err
	}
	return changed, sweep(root, files, current)
}

// currentStamp returns the directory that ..data points to; empty: Write has made none.
func currentStamp(root *os.Root) string {
	to, err := root.Readlink(dataLink)
	if err != nil || !stampName.MatchString(to) {
		return ""
	}
	if info, err := root.Lstat(to); err != nil || !info.IsDir() {
		return ""
	}
	return to
}

// replace writes the files into a new directory and makes ..data point to it. If it fails, it removes the directory: the next write may
// need its memory.
func replace(root *os.Root, files map[string]File, group *int64, now time.Time) (string, error) {
	stamp := now.UTC().Format("..2006_01_02_15_04_05.") + strconv.FormatUint(uint64(rand.Uint32()), 10)
	if err := root.Mkdir(stamp, 0o755); err != nil {
		return "", fmt.Errorf("make volume's new directory: %w", err)
	}
	if err := swap(root, stamp, files, group); err != nil {
		return "", errors.Join(err, root.RemoveAll(stamp))
	}
	return stamp, nil
}

// swap fills the new directory and makes ..data point to it.
func swap(root *os.Root, stamp string, files map[string]File, group *int64) error {
	below, err := root.OpenRoot(stamp)
	if err != nil {
		return fmt.Errorf("open volume's new directory: %w", err)
	}
	defer below.Close()
	if err := fill(below, files, group); err != nil {
		return err
	}
	if err := root.RemoveAll(newLink); err != nil {
		return fmt.Errorf("remove stale link of volume: %w", err)
	}
	if err := root.Symlink(stamp, newLink); err != nil {
		return fmt.Errorf("make link of volume: %w", err)
	}
	// A rename does not replace a directory.
	if info, err := root.Lstat(dataLink); err == nil && info.IsDir() {
		if err := root.RemoveAll(dataLink); err != nil {
			return fmt.Errorf("remove what is not the link of volume: %w", err)
		}
	}
	if err := root.Rename(newLink, dataLink); err != nil {
		return fmt.Errorf("swap link of volume: %w", err)
	}
	return nil
}

// linkNames makes the links that users see, and replaces other files of these names.
func linkNames(root *os.Root, files map[string]File) error {
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		want := path.Join(dataLink, top)
		if to, err := root.Readlink(top); err == nil && to == want {
			continue
		}
		if err := root.RemoveAll(top); err != nil {
			return fmt.Errorf("remove what has the name of file %s: %w", name, err)
		}
		if err := root.Symlink(want, top); err != nil {
			return fmt.Errorf("make link of file %s: %w", name, err)
		}
	}
	return nil
}

// checkName rejects names that would leave the volume.
func checkName(name string) error {
	switch {
	case name == "" || path.IsAbs(name) || len(name) > 4096:
		return fmt.Errorf("file name %q is not a relative path", name)
	case slices.Contains(strings.Split(name, "/"), ".."):
		return fmt.Errorf("file name %q leaves the volume", name)
	case strings.HasPrefix(name, ".."):
		return fmt.Errorf("file name %q starts with '..'", name)
	}
	return nil
}

func fill(root *os.Root, files map[string]File, group *int64) error {
	if err := root.Chmod(".", 0o755); err != nil {
		return fmt.Errorf("open volume's new directory: %w", err)
	}
	for name, file := range files {
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return fmt.Errorf("make directory of %s: %w", name, err)
		}
		if err := fillFile(root, name, file, group); err != nil {
			return err
		}
	}
	return nil
}

// fillFile creates one file. It never writes to an existing one.
func fillFile(root *os.Root, name string, file File, group *int64) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make file %s: %w", name, err)
	}
	defer f.Close()
	if _, err := f.Write(file.Data); err != nil {
		return fmt.Errorf("write file %s: %w", name, err)
	}
	mode := fs.FileMode(file.Mode) & fs.ModePerm
	uid, gid := -1, -1
	if file.Owner != nil {
		uid = int(*file.Owner)
	}
	if group != nil {
		mode |= 0o440
		gid = int(*group)
	}
	if uid >= 0 || gid >= 0 {
		if err := f.Chown(uid, gid); err != nil {
			return fmt.Errorf("give file %s away: %w", name, err)
		}
	}
	// After the change of the owner, and regardless of the umask.
	if err := f.Chmod(mode); err != nil {
		return fmt.Errorf("set mode of %s: %w", name, err)
	}
	return nil
}

// same reports whether the directory contains exactly the files' names and contents.
func same(root *os.Root, stamp string, files map[string]File) bool {
	below, err := root.OpenRoot(stamp)
	if err != nil {
		return false
	}
	defer below.Close()
	found := 0
	err = fs.WalkDir(below.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file, ok := files[name]
		if !ok {
			return errors.New("extra file")
		}
		found++
		return sameFile(below, name, file)
	})
	return err == nil && found == len(files)
}

// sameFile reads no more than necessary, and never blocks.
func sameFile(root *os.Root, name string, file File) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&^0o440 != fs.FileMode(file.Mode).Perm()&^0o440 {
		return errors.New("other mode")
	}
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if opened, err := f.Stat(); err != nil || !os.SameFile(opened, info) {
		return errors.New("other file")
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(len(file.Data))+1))
	if err != nil {
		return err
	}
	if !bytes.Equal(data, file.Data) {
		return errors.New("other contents")
	}
	return nil
}

// sweep removes old contents and the links of removed files. It leaves directories with other names: a subPath may have made them.
func sweep(root *os.Root, files map[string]File, current string) error {
	keep := map[string]bool{dataLink: true, current: true}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		keep[top] = true
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, e := range entries {
		if keep[e.Name()] || e.IsDir() && !strings.HasPrefix(e.Name(), "..") {
			continue
		}
		if err := root.RemoveAll(e.Name()); err != nil {
			return fmt.Errorf("remove %s of volume: %w", e.Name(), err)
		}
	}
	return nil
}
