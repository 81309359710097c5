// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
)

// mirror makes a copy of a package's folder below scratch and returns its path. The folder's files and its testdata are copied, so that
// tests can write there. Everything else of the module is linked at the same relative path, so that ../../go.mod leads where it
// leads from the package.
func mirror(scratch, module, folder string) (string, error) {
	way, err := filepath.Rel(module, folder)
	if err != nil {
		return "", err
	}
	from, to := module, scratch
	if way != "." {
		for next := range strings.SplitSeq(way, string(filepath.Separator)) {
			if err := link(from, to, func(e os.DirEntry) bool { return e.Name() != next }); err != nil {
				return "", err
			}
			from, to = filepath.Join(from, next), filepath.Join(to, next)
			if err := os.Mkdir(to, 0o755); err != nil {
				return "", err
			}
		}
	}
	if err := link(from, to, func(e os.DirEntry) bool { return e.IsDir() && e.Name() != "testdata" }); err != nil {
		return "", err
	}
	return to, copyFiles(from, to)
}

// link makes links in one directory to the entries of another.
func link(from, to string, wanted func(os.DirEntry) bool) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !wanted(e) {
			continue
		}
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// copyFiles copies a directory's files, and its testdata whole.
func copyFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		text, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, e.Name()), text, 0o644); err != nil {
			return err
		}
	}
	testdata := filepath.Join(from, "testdata")
	if _, err := os.Stat(testdata); os.IsNotExist(err) {
		return nil
	}
	return os.CopyFS(filepath.Join(to, "testdata"), os.DirFS(testdata))
}
