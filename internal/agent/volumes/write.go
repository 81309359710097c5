// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// File is one file to be in a volume.
type File struct {
	Data []byte
	Mode int32
	// Owner is a user's number, or nil for root.
	Owner *int64
}

const (
	dataLink = "..data"
	newLink  = "..data_tmp"
)

// Write makes the directory hold exactly the files, and all at once: the files are
// written into a new directory, and one rename makes the link ..data point to it. Names
// that users see are links into ..data, so
//
//	dir/key            → ..data/key
//	dir/..data         → ..2026_01_02_03_04_05.123456789
//
// It returns whether anything changed. With a group, files are readable by it.
func Write(dir string, files map[string]File, group *int64, now time.Time) (bool, error) {
	for name := range files {
		if err := checkName(name); err != nil {
			return false, err
		}
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read link of volume: %w", err)
	}
	if old != "" && same(filepath.Join(dir, old), files) {
		return false, sweepNames(dir, files)
	}
	stamp, err := os.MkdirTemp(dir, now.UTC().Format("..2006_01_02_15_04_05."))
	if err != nil {
		return false, fmt.Errorf("make volume's new directory: %w", err)
	}
	if err := fill(stamp, files, group); err != nil {
		return false, errors.Join(err, os.RemoveAll(stamp))
	}
	if err := os.Remove(filepath.Join(dir, newLink)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("remove stale link of volume: %w", err)
	}
	if err := os.Symlink(filepath.Base(stamp), filepath.Join(dir, newLink)); err != nil {
		return false, fmt.Errorf("make link of volume: %w", err)
	}
	if err := os.Rename(filepath.Join(dir, newLink), filepath.Join(dir, dataLink)); err != nil {
		return false, fmt.Errorf("swap link of volume: %w", err)
	}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		link := filepath.Join(dir, top)
		if _, err := os.Lstat(link); err == nil {
			continue
		}
		if err := os.Symlink(path.Join(dataLink, top), link); err != nil && !errors.Is(err, fs.ErrExist) {
			return false, fmt.Errorf("make link of file %s: %w", name, err)
		}
	}
	if err := sweepNames(dir, files); err != nil {
		return false, err
	}
	if old != "" {
		if err := os.RemoveAll(filepath.Join(dir, old)); err != nil {
			return false, fmt.Errorf("remove volume's old directory: %w", err)
		}
	}
	return true, nil
}

// checkName refuses names that would leave the volume.
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

func fill(dir string, files map[string]File, group *int64) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("open volume's new directory: %w", err)
	}
	for name, file := range files {
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("make directory of %s: %w", name, err)
		}
		mode := fs.FileMode(file.Mode) & fs.ModePerm
		if group != nil {
			mode |= 0o440
		}
		if err := os.WriteFile(target, file.Data, mode); err != nil {
			return fmt.Errorf("write file %s: %w", name, err)
		}
		uid, gid := -1, -1
		if file.Owner != nil {
			uid = int(*file.Owner)
		}
		if group != nil {
			gid = int(*group)
		}
		if uid >= 0 || gid >= 0 {
			if err := os.Lchown(target, uid, gid); err != nil {
				return fmt.Errorf("give file %s away: %w", name, err)
			}
		}
		// After the change of owner, and whatever the umask said.
		if err := os.Chmod(target, mode); err != nil {
			return fmt.Errorf("set mode of %s: %w", name, err)
		}
	}
	return nil
}

// same says whether the directory holds exactly the files' names and contents.
func same(dir string, files map[string]File) bool {
	found := 0
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		file, ok := files[name]
		if !ok {
			return errors.New("extra file")
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&^0o440 != fs.FileMode(file.Mode).Perm()&^0o440 {
			return errors.New("other mode")
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if !bytes.Equal(data, file.Data) {
			return errors.New("other contents")
		}
		found++
		return nil
	})
	return err == nil && found == len(files)
}

// sweepNames removes the links of files that are no longer.
func sweepNames(dir string, files map[string]File) error {
	keep := map[string]bool{}
	for name := range files {
		top, _, _ := strings.Cut(name, "/")
		keep[top] = true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read volume: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") || keep[e.Name()] || e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove link of file %s: %w", e.Name(), err)
		}
	}
	return nil
}
