// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package reload reports changes of files. It watches their directories, so that it notices files that are replaced by
// renaming or through a symbolic link. It also reports periodically, for file systems without events.
package reload

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch calls changed, on its own goroutine, whenever one of the files may have changed, and at least once per interval
// every, until ctx ends. changed must check itself whether there was a change. Watch calls it once at the beginning,
// for changes before that.
func Watch(ctx context.Context, every time.Duration, log *slog.Logger, changed func(), files ...string) {
	w, err := watcher(files)
	if err != nil {
		log.WarnContext(ctx, "Could not watch files, polling them", "files", files, "every", every, "error", err)
		w = &fsnotify.Watcher{}
	} else {
		defer w.Close()
	}
	t := time.NewTicker(every)
	defer t.Stop()
	changed()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case _, ok := <-w.Events:
			if !ok {
				w = &fsnotify.Watcher{}
				continue
			}
			drain(w)
		case err, ok := <-w.Errors:
			if ok {
				log.WarnContext(ctx, "Could not watch files", "files", files, "error", err)
			}
		}
		changed()
	}
}

func watcher(files []string) (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("make file watcher: %w", err)
	}
	for _, f := range files {
		if err := w.Add(filepath.Dir(f)); err != nil {
			_ = w.Close()
			return nil, fmt.Errorf("watch directory: %w", err)
		}
	}
	return w, nil
}

// drain removes pending events: one check of the files covers them all.
func drain(w *fsnotify.Watcher) {
	for {
		select {
		case _, ok := <-w.Events:
			if !ok {
				return
			}
		default:
			return
		}
	}
}
