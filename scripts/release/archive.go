// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/md5" //nolint:gosec // of Debian's packages
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file or, if its name ends in a slash, a directory of an archive.
type entry struct {
	name string
	mode int64
	data []byte
}

// archive writes the archive of a platform: a zip file for Windows, a compressed tar file for the others.
func (r *release) archive(p platform) error {
	top := strings.TrimSuffix(filepath.Base(r.named(p.String())), ".") + "/"
	entries := []entry{{name: top, mode: 0o755}}
	add := func(name, from string, mode int64) error {
		data, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("read what goes into the archive: %w", err)
		}
		entries = append(entries, entry{name: top + name, mode: mode, data: data})
		return nil
	}
	err := errors.Join(add(p.program(), r.binary(p), 0o755), add("LICENSE", "LICENSE", 0o644), add("README.md", "README.md", 0o644))
	if p.os != "windows" {
		for _, dir := range [][2]string{{"man/man1/", r.manual}, {"completions/", r.completed}} {
			files, readErr := os.ReadDir(dir[1])
			err = errors.Join(err, readErr)
			for _, f := range files {
				err = errors.Join(err, add(dir[0]+f.Name(), filepath.Join(dir[1], f.Name()), 0o644))
			}
		}
	}
	if err != nil {
		return err
	}
	name, write := r.named(p.String()+".tar.gz"), writeTarGz
	if p.os == "windows" {
		name, write = r.named(p.String()+".zip"), writeZip
	}
	return toFile(name, func(w io.Writer) error { return write(w, entries, r.time) })
}

// toFile writes a file by a function.
func toFile(name string, write func(w io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write the release: %w", err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// writeTar writes entries that belong to root, in their order.
func writeTar(w io.Writer, entries []entry, at time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatUSTAR}
		if strings.HasSuffix(e.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(e.data); err != nil {
			return err
		}
	}
	return t.Close()
}

func writeTarGz(w io.Writer, entries []entry, at time.Time) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(z, entries, at), z.Close())
}

func writeZip(w io.Writer, entries []entry, at time.Time) error {
	z := zip.NewWriter(w)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: at}
		h.SetMode(os.FileMode(e.mode)) //nolint:gosec // modes have nine bits
		f, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := f.Write(e.data); err != nil {
			return err
		}
	}
	return z.Close()
}

// gzipped compresses a text as Debian wants documentation to be.
func gzipped(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(data)
	if err := errors.Join(err, z.Close()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// sorted sorts entries by name.
func sorted(entries []entry) []entry {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	return entries
}

// sumMD5 returns the checksum that Debian's packages have for each file.
func sumMD5(data []byte) string { return fmt.Sprintf("%x", md5.Sum(data)) } //nolint:gosec // Debian's choice; it guards nothing
