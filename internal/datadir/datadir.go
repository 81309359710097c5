// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package datadir opens the directory in which a cluster or a node keeps its state, and locks it against other processes:
//
//	DIR/format       which layout this is
//	DIR/lock         held while a process has the directory open
//	DIR/pki/         the cluster's certificates and keys
//	DIR/store/       the local engine's own
//	DIR/node/        the identity of a node that joined a cluster
//	DIR/kubelet/     what the node keeps of its pods
//	DIR/containerd/  a containerd of our own, where the machine has none
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/mortise-dev/mortise/internal/durable"
)

// format is what the file "format" of a data directory says. A directory that says otherwise is left as it is.
const format = "mortise 1\n"

// Dir is an open data directory.
type Dir struct{ lock *os.File }

// Open makes or opens the directory and locks it. Each error is one clear line, and changes nothing. Without a path there is no
// directory: the answer is nil, which may be closed.
func Open(path string) (_ *Dir, err error) {
	if path == "" {
		return nil, nil
	}
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
		return nil, fmt.Errorf("data directory %s has format %q, which this release does not know (it knows %q)",
			path, strings.TrimSpace(string(have)), strings.TrimSpace(format))
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
	if err := durable.Lock(lock); err != nil {
		return nil, fmt.Errorf("data directory %s is in use by another process", path)
	}
	if have == nil {
		if err := durable.Write(filepath.Join(path, "format"), 0o600, []byte(format)); err != nil {
			return nil, fmt.Errorf("write format of data directory: %w", err)
		}
	}
	return &Dir{lock: lock}, nil
}

// foreign reports whether a directory without a format file holds anything but what `mortise machine prepare`, a restore and a start
// that was cut short leave there, and the certificates of another server.
func foreign(entries []fs.DirEntry) bool {
	for _, e := range entries {
		switch e.Name() {
		case "lock", "containerd", "kubeconfig", "store", "pki": // `mortise store restore` leaves a store; pki may be another server's
		default:
			return true
		}
	}
	return false
}

// Close unlocks the directory.
func (d *Dir) Close() error {
	if d == nil {
		return nil
	}
	return d.lock.Close()
}
