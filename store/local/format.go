// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local/disk"
)

const (
	formatFile = "format"
	formatNext = "format.tmp"
	lockFile   = "lock"
	formatLine = "mortise store 1"
)

// formatText is the content of the format file: a line for the format, and one for the identity.
func formatText(id identity) string {
	return formatLine + "\nid " + hex.EncodeToString(id[:]) + "\n"
}

// parseFormat reads a format file.
func parseFormat(text string) (identity, error) {
	var id identity
	line, rest, _ := strings.Cut(text, "\n")
	if line != formatLine {
		if len(line) > 64 {
			line = line[:64] + "…"
		}
		return id, fmt.Errorf("%w: have %q, know %q", store.ErrFormat, line, formatLine)
	}
	digits, ok := strings.CutPrefix(strings.TrimSuffix(rest, "\n"), "id ")
	b, err := hex.DecodeString(digits)
	if !ok || err != nil || len(b) != identityBytes {
		return id, fmt.Errorf("%w: no identity", store.ErrCorrupt)
	}
	copy(id[:], b)
	return id, nil
}

// readFormat returns the identity of the store in a directory, or false if the directory is empty or absent. A directory
// that holds something else is refused.
func readFormat(fsys disk.FS, dir string) (identity, bool, error) {
	b, err := readFile(fsys, filepath.Join(dir, formatFile))
	if err == nil {
		id, err := parseFormat(string(b))
		if err != nil {
			return id, false, fmt.Errorf("read %s: %w", filepath.Join(dir, formatFile), err)
		}
		return id, true, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return identity{}, false, fmt.Errorf("read format: %w", err)
	}
	names, err := fsys.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return identity{}, false, fmt.Errorf("list store: %w", err)
	}
	for _, name := range names {
		if name != lockFile && name != formatNext && name != checkNext {
			return identity{}, false, fmt.Errorf("read %s: %w: holds %s but no format file", dir, store.ErrFormat, name)
		}
	}
	return identity{}, false, nil
}

// writeFormat makes a directory a store.
func writeFormat(fsys disk.FS, dir string) (identity, error) {
	var id identity
	if _, err := rand.Read(id[:]); err != nil {
		return id, fmt.Errorf("make identity: %w", err)
	}
	err := writeFile(fsys, dir, formatNext, formatFile, func(f disk.File) error {
		_, err := f.WriteAt([]byte(formatText(id)), 0)
		return err
	})
	if err != nil {
		return id, fmt.Errorf("write format: %w", err)
	}
	return id, nil
}

// writeFile makes a file that is there whole or not at all.
func writeFile(fsys disk.FS, dir, temporary, name string, write func(disk.File) error) error {
	file, err := fsys.Create(filepath.Join(dir, temporary))
	if err != nil {
		return err
	}
	if err = write(file); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		_ = fsys.Remove(filepath.Join(dir, temporary)) // best effort: it is never taken for more than a leftover
		return err
	}
	if err := fsys.Rename(filepath.Join(dir, temporary), filepath.Join(dir, name)); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}
