// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// FileOptions determine when a log file is rotated, and how long rotated files are kept.
type FileOptions struct {
	Path string
	// MaxSize is the maximum size of a file in bytes; 0: it is never rotated.
	MaxSize int64
	// MaxAge and MaxBackups limit the rotated files; 0: no limit.
	MaxAge     time.Duration
	MaxBackups int
	Compress   bool
	Log        *slog.Logger
	Clock      clock.PassiveClock
}

// File is a log file with rotation. A full file is renamed with the time in its name:
// audit-2026-11-21T10-30-00.000.log, with .gz if it is compressed. Each write is one system call with whole lines, so
// written lines survive the process.
type File struct {
	o     FileOptions
	aside chan struct{} // receives when there are rotated files to tidy

	mu   sync.Mutex
	file *os.File
	size int64
}

// backupTime is the format of the time in a name.
const backupTime = "2006-01-02T15-04-05.000"

// OpenFile opens or creates a log file and its directories. Only its owner may read it.
func OpenFile(o FileOptions) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(o.Path), 0o700); err != nil {
		return nil, fmt.Errorf("make directory of audit log: %w", err)
	}
	f := &File{o: o, aside: make(chan struct{}, 1)}
	if err := f.open(); err != nil {
		return nil, err
	}
	f.aside <- struct{}{} // files of earlier runs must be tidied too
	return f, nil
}

func (f *File) open() error {
	file, err := os.OpenFile(f.o.Path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open audit log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open audit log: %w", err), file.Close())
	}
	f.file, f.size = file, info.Size()
	return nil
}

// Write appends lines. It first rotates the file if they do not fit.
func (f *File) Write(lines []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	if f.o.MaxSize > 0 && f.size > 0 && f.size+int64(len(lines)) > f.o.MaxSize {
		if err := f.putAside(); err != nil {
			return 0, err
		}
	}
	n, err := f.file.Write(lines)
	f.size += int64(n)
	return n, err
}

func (f *File) putAside() error {
	err := f.file.Close()
	f.file = nil
	if err != nil {
		return fmt.Errorf("close audit log: %w", err)
	}
	to := f.backup(f.o.Clock.Now())
	for n := 1; exists(to) || exists(to+".gz"); n++ { // two rotations within a millisecond
		to = f.backup(f.o.Clock.Now().Add(time.Duration(n) * time.Millisecond))
	}
	if err := os.Rename(f.o.Path, to); err != nil {
		return fmt.Errorf("put audit log aside: %w", err)
	}
	select {
	case f.aside <- struct{}{}:
	default:
	}
	return f.open()
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (f *File) names() (prefix, suffix string) {
	suffix = filepath.Ext(f.o.Path)
	return strings.TrimSuffix(f.o.Path, suffix) + "-", suffix
}

func (f *File) backup(at time.Time) string {
	prefix, suffix := f.names()
	return prefix + at.UTC().Format(backupTime) + suffix
}

// Run tidies rotated files until ctx ends.
func (f *File) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.aside:
			if err := f.tidy(); err != nil {
				f.o.Log.ErrorContext(ctx, "Could not remove or compress rotated audit logs", "error", err)
			}
		}
	}
}

// kept is a rotated file.
type kept struct {
	path string
	at   time.Time
	gz   bool
}

// tidy removes rotated files that are too old or too many, and compresses the others.
func (f *File) tidy() error {
	prefix, suffix := f.names()
	entries, err := os.ReadDir(filepath.Dir(f.o.Path))
	if err != nil {
		return fmt.Errorf("list old audit logs: %w", err)
	}
	var all []kept
	for _, e := range entries {
		name, gz := strings.CutSuffix(filepath.Join(filepath.Dir(f.o.Path), e.Name()), ".gz")
		stamp, ok := strings.CutPrefix(name, filepath.Clean(prefix))
		if !ok || !strings.HasSuffix(stamp, suffix) {
			continue
		}
		at, err := time.Parse(backupTime, strings.TrimSuffix(stamp, suffix))
		if err != nil {
			continue // not a rotated file
		}
		k := kept{path: name, at: at, gz: gz}
		if gz {
			k.path += ".gz"
		}
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b kept) int { return b.at.Compare(a.at) })
	var errs []error
	for i, k := range all {
		switch {
		case f.o.MaxBackups > 0 && i >= f.o.MaxBackups, f.o.MaxAge > 0 && f.o.Clock.Since(k.at) > f.o.MaxAge:
			errs = append(errs, os.Remove(k.path))
		case f.o.Compress && !k.gz:
			errs = append(errs, compress(k.path))
		}
	}
	return errors.Join(errs...)
}

// compress replaces a file with its compressed form. A crash in the middle leaves the file, and a partial result that
// the next attempt overwrites.
func compress(path string) (err error) {
	in, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("compress audit log: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	part := path + ".part"
	out, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("compress audit log: %w", err)
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	if err = errors.Join(err, z.Close(), out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("compress audit log: %w", errors.Join(err, os.Remove(part)))
	}
	if err := os.Rename(part, path+".gz"); err != nil {
		return fmt.Errorf("compress audit log: %w", err)
	}
	return os.Remove(path)
}

// Close closes the file.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}
