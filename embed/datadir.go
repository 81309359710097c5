// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/durable"
)

// format is what the file "format" of a data directory says. A directory that says otherwise is left as it is.
const format = "mortise 1\n"

// dataDir is an open data directory:
//
//	DIR/format       which layout this is
//	DIR/lock         held while a process has the directory open
//	DIR/pki/         the cluster's certificates and keys
//	DIR/store/       the local engine's own
//	DIR/kubelet/     what the node keeps of its pods
//	DIR/containerd/  a containerd of our own, where the machine has none
type dataDir struct {
	path string
	lock *os.File
}

// openDataDir makes or opens the directory and locks it. Each error is one clear line, and changes nothing.
func openDataDir(path string) (_ *dataDir, err error) {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("make data directory: %w", err)
		}
	case err != nil:
		return nil, fmt.Errorf("read data directory: %w", err)
	}
	have, err := os.ReadFile(filepath.Join(path, "format"))
	switch {
	case err == nil && string(have) != format:
		return nil, fmt.Errorf("data directory %s has format %q, which this release does not know (it knows %q)", path, strings.TrimSpace(string(have)), strings.TrimSpace(format))
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read data directory: %w", err)
	case err != nil && foreign(entries):
		return nil, fmt.Errorf("data directory %s is not empty and not one of Mortise's (no file \"format\")", path)
	}

	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of data directory: %w", err)
	}
	defer func() {
		if err != nil {
			lock.Close()
		}
	}()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("data directory %s is in use by another process", path)
	}
	if have == nil {
		if err := durable.Write(filepath.Join(path, "format"), 0o600, []byte(format)); err != nil {
			return nil, fmt.Errorf("write format of data directory: %w", err)
		}
	}
	return &dataDir{path: path, lock: lock}, nil
}

// foreign says whether a directory without a format file holds anything but what `mortise machine prepare`, a restore and a start
// that was cut short leave there.
func foreign(entries []fs.DirEntry) bool {
	for _, e := range entries {
		switch e.Name() {
		case "lock", "containerd", "kubeconfig", "store": // `mortise store restore` leaves a store
		default:
			return true
		}
	}
	return false
}

// close gives the directory free.
func (d *dataDir) close() error {
	if d == nil {
		return nil
	}
	return d.lock.Close()
}
