// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
)

// files is the source of manifests on disk.
type files struct {
	o     Options
	known map[string]*manifest // by path
	said  string               // the last logged error of the path itself
	told  bool
}

// manifest is the last read state of one file.
type manifest struct {
	sum      [sha256.Size]byte
	pods     []*corev1.Pod // from the last valid content
	failures backoff.Failures
}

func newFiles(o Options) *files { return &files{o: o, known: map[string]*manifest{}} }

// run reads everything when the kernel reports a change, and periodically for safety.
func (f *files) run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch static pods: %w", err)
	}
	defer watcher.Close()
	ticker := f.o.Clock.NewTicker(f.o.FilePeriod)
	defer ticker.Stop()
	for {
		// This does not watch anything twice, and retries missing directories.
		f.watch(watcher)
		f.look()
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-watcher.Events:
		case err := <-watcher.Errors:
			f.o.Logger.Warn("Could not watch the static pod path", "path", f.o.Path, "err", err)
		}
	}
}

// watch watches the directory, or the parent of the file: a file may be replaced by another of its name.
func (f *files) watch(watcher *fsnotify.Watcher) {
	for _, dir := range []string{f.o.Path, filepath.Dir(f.o.Path)} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			if err := watcher.Add(dir); err == nil {
				return
			}
		}
	}
}

// look reads what has changed and passes on the pods.
func (f *files) look() {
	paths, err := f.list()
	complaint := ""
	if err != nil {
		complaint = err.Error()
	}
	if complaint != "" && complaint != f.said {
		f.o.Logger.Warn("Could not read static pods", "path", f.o.Path, "err", err)
	}
	f.said = complaint
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return // the existing pods stay
	}
	changed := !f.told
	present := map[string]bool{}
	for _, path := range paths {
		present[path] = true
		changed = f.read(path) || changed
	}
	for path, m := range f.known {
		if !present[path] {
			changed = changed || len(m.pods) > 0
			delete(f.known, path)
		}
	}
	if !changed {
		return
	}
	f.told = true
	var pods []*corev1.Pod
	for _, path := range paths {
		if m := f.known[path]; m != nil {
			pods = append(pods, m.pods...)
		}
	}
	f.o.Set(File, pods)
}

// list returns the files, sorted by name. It skips names that begin with a dot.
func (f *files) list() ([]string, error) {
	info, err := os.Stat(f.o.Path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode().IsRegular():
		return []string{f.o.Path}, nil
	case !info.IsDir():
		return nil, errors.New("path is not a directory or file") // upstream's words
	}
	entries, err := os.ReadDir(f.o.Path)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(f.o.Path, e.Name())
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		// Follow links, as for a mounted ConfigMap.
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			out = append(out, path)
		}
	}
	return out, nil
}

// read reads a changed file again. It returns whether its pods have changed.
func (f *files) read(path string) bool {
	m := f.known[path]
	if m == nil {
		m = &manifest{}
		f.known[path] = m
	}
	data, err := content(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false
	case err != nil:
		m.failures.Log(f.o.Clock.Now(), f.o.Logger.Warn, "Could not read a static pod, retrying", "file", path, "err", err)
		return false
	}
	m.failures.Clear()
	sum := sha256.Sum256(data)
	if m.sum == sum {
		return false
	}
	m.sum = sum
	pods, err := f.o.Decode(data, path, true)
	if err != nil {
		f.o.Logger.Warn("Rejected a static pod", "file", path, "err", err)
		return false
	}
	m.pods = pods
	return true
}

// content returns the contents of a file.
func content(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, largest+1))
	if err == nil && len(data) > largest {
		err = fmt.Errorf("it is larger than %d bytes", largest)
	}
	return data, err
}
