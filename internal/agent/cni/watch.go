// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// Watch calls restore when a directory has neither our configuration nor another: immediately, and whenever that becomes true, until ctx is
// done.
func Watch(ctx context.Context, dir string, restore func()) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch CNI directory: %w", err)
	}
	defer watcher.Close()
	for {
		if err := watchNearest(watcher, dir); err != nil {
			return fmt.Errorf("watch CNI directory: %w", err)
		}
		if empty(dir) {
			restore()
			if err := watchNearest(watcher, dir); err != nil { // the directory may have been created just now
				return fmt.Errorf("watch CNI directory: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.Events:
		case <-watcher.Errors: // reading the directory makes up for lost events
		}
	}
}

// empty reports whether a directory has no configuration.
func empty(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, FileName))
	return errors.Is(err, fs.ErrNotExist) && Other(dir) == ""
}

// watchNearest watches a directory or, if it does not exist, its nearest existing parent.
func watchNearest(watcher *fsnotify.Watcher, dir string) error {
	for {
		err := watcher.Add(dir)
		if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(dir) == dir {
			return err
		}
		dir = filepath.Dir(dir)
	}
}
