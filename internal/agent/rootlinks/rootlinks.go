// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package rootlinks makes a node's directories reachable below kubelet's usual one, /var/lib/kubelet: nearly all plug-ins of nodes have its
// paths built in, and so do the manifests that deploy them.
package rootlinks

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Names are the directories that plug-ins and monitoring agents know.
func Names() []string {
	return []string{"plugins_registry", "device-plugins", "pod-resources", "pods-api", "plugins", "pods"}
}

// Make makes the directories below root, and for each a link of its name below usual, which it logs. A link that leads elsewhere is
// replaced: a node that was killed has left it. Anything else of that name stays, with a warning. Nothing is linked if both are the same
// directory, or if another node that runs has its links there: it holds a lock of usual, which the kernel releases with its process.
//
// The function remove removes the links that Make has made and that still lead here, and usual if it is empty then.
func Make(usual, root string, log *slog.Logger) (remove func() error, err error) {
	for _, name := range Names() {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return nil, fmt.Errorf("make directory for plug-ins: %w", err)
		}
	}
	if usual == "" || same(usual, root) {
		return func() error { return nil }, nil
	}
	if err := os.MkdirAll(usual, 0o755); err != nil {
		return nil, fmt.Errorf("make directory for links to those of the node: %w", err)
	}
	lock, err := lock(usual)
	if err != nil {
		return nil, fmt.Errorf("lock directory of links: %w", err)
	}
	if lock == nil {
		log.Warn("Another node has its links at kubelet's usual paths: plug-ins that have them built in do not find this one", "path", usual)
		return func() error { return nil }, nil
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	var made []string
	for _, name := range Names() {
		link, target := filepath.Join(usual, name), filepath.Join(root, name)
		switch err := replace(link, target); {
		case errors.Is(err, fs.ErrExist):
			log.Warn("Plug-ins that have this path built in do not find the node: it is not a link", "path", link, "node", target)
		case err != nil:
			return nil, fmt.Errorf("link %s: %w", link, err)
		default:
			made = append(made, name)
		}
	}
	if len(made) > 0 {
		log.Info("Linked kubelet's usual paths to the node's, for plug-ins that have them built in", "from", usual, "to", root, "names", made)
	}
	return func() error {
		var failed []error
		for _, name := range made {
			link := filepath.Join(usual, name)
			if to, err := os.Readlink(link); err == nil && to == filepath.Join(root, name) {
				failed = append(failed, os.Remove(link))
			}
		}
		_ = os.Remove(usual) // unless others have something in it
		return errors.Join(append(failed, lock.Close())...)
	}, nil
}

// lock locks a directory for this process. It returns nil if another process has done so.
func lock(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, f.Close()
	case err != nil:
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// same reports whether two paths name one directory.
func same(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// replace makes a link, in place of another one. It returns fs.ErrExist if the name is something else.
func replace(link, target string) error {
	to, err := os.Readlink(link)
	switch {
	case err == nil && to == target:
		return nil
	case err == nil:
		if err := os.Remove(link); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fs.ErrExist
	}
	return os.Symlink(target, link)
}
