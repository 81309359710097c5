// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mortise-dev/mortise/internal/agent/safepath"
	"github.com/mortise-dev/mortise/internal/durable"
)

// The kinds of what there is in the driver's directory.
const (
	volumesDir   = "volumes"
	snapshotsDir = "snapshots"
)

// recordFile describes a volume or a snapshot.
const recordFile = "volume.json"

// recordSize is the maximum size of the file.
const recordSize = 16 << 10

// defaultSize is the size of a volume whose provisioner names none.
const defaultSize = 1 << 30

// record is the file of a volume or a snapshot.
type record struct {
	ID        string    `json:"id"`
	Name      string    `json:"name,omitempty"` // that the provisioner gave
	Size      int64     `json:"size"`           // in bytes; enforced where the file system can, see limit
	Source    string    `json:"source,omitempty"`
	Snapshot  string    `json:"snapshot,omitempty"` // the source is a snapshot
	Ephemeral bool      `json:"ephemeral,omitempty"`
	Alone     string    `json:"alone,omitempty"` // the only path where the volume may be published
	Made      time.Time `json:"made"`
}

// store has the volumes and snapshots of the driver.
type store struct {
	Options

	mu sync.Mutex // held while volumes and snapshots are made and removed
}

var validID = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,126}[a-z0-9])?$`)

// idOf returns the ID for a name: the same for the same name.
func idOf(name string) string {
	if validID.MatchString(name) {
		return name
	}
	return fmt.Sprintf("v-%x", sha256.Sum256([]byte(name)))
}

// dataOf returns the directory that pods see.
func (d *store) dataOf(kind, id string) string { return filepath.Join(d.Dir, kind, id, "data") }

// prepare makes the driver's directories, and removes what an earlier process has not completed.
func (d *store) prepare() error {
	for _, kind := range []string{volumesDir, snapshotsDir} {
		dir := filepath.Join(d.Dir, kind)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directory of volumes: %w", err)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("list volumes: %w", err)
		}
		for _, e := range entries {
			if e.Name()[0] != '.' {
				continue
			}
			if err := safepath.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				d.Logger.Warn("Could not remove what is left of a volume", "dir", filepath.Join(dir, e.Name()), "err", err)
			}
		}
	}
	return nil
}

// decodeRecord reads a file.
func decodeRecord(text []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read volume's file: %w", err)
	}
	if !validID.MatchString(r.ID) || r.Size < 0 {
		return nil, errors.New("volume's file names no volume")
	}
	return r, nil
}

// find returns a volume or a snapshot; nil: there is none.
func (d *store) find(kind, id string) (*record, error) {
	if !validID.MatchString(id) {
		return nil, nil
	}
	text, err := safepath.ReadRegular(filepath.Join(d.Dir, kind, id, recordFile), recordSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "read volume %s: %v", id, err)
	}
	r, err := decodeRecord(text)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "read volume %s: %v", id, err)
	}
	return r, nil
}

// list returns all volumes or snapshots, by ID.
func (d *store) list(kind string) ([]*record, error) {
	entries, err := os.ReadDir(filepath.Join(d.Dir, kind))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "list %s: %v", kind, err)
	}
	var out []*record
	for _, e := range entries {
		r, err := d.find(kind, e.Name())
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// make makes a volume or a snapshot, with the contents of a directory, unless that is empty. The caller holds the lock.
func (d *store) make(kind string, r *record, from string) error {
	top := filepath.Join(d.Dir, kind)
	if err := os.MkdirAll(top, 0o700); err != nil {
		return fmt.Errorf("make directory of volumes: %w", err)
	}
	temp, err := os.MkdirTemp(top, ".making-")
	if err != nil {
		return fmt.Errorf("make volume %s: %w", r.ID, err)
	}
	defer func() { _ = safepath.RemoveAll(temp) }() // it is renamed unless it fails
	data := filepath.Join(temp, "data")
	if kind == volumesDir {
		if err = makeLimited(data); err == nil {
			err = limit(data, r.Size)
		}
	} else {
		err = os.Mkdir(data, 0o777)
	}
	if err != nil {
		return fmt.Errorf("make volume %s: %w", r.ID, err)
	}
	if err := os.Chmod(data, 0o777); err != nil { // pods have any user
		return fmt.Errorf("make volume %s: %w", r.ID, err)
	}
	if from != "" {
		if err := copyTree(from, data); err != nil {
			return fmt.Errorf("copy to volume %s: %w", r.ID, err)
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode volume: %w", err)
	}
	if err := durable.Write(filepath.Join(temp, recordFile), 0o600, text); err != nil {
		return fmt.Errorf("write volume %s: %w", r.ID, err)
	}
	if err := os.Rename(temp, filepath.Join(top, r.ID)); err != nil {
		return fmt.Errorf("make volume %s: %w", r.ID, err)
	}
	return syncDir(top)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer f.Close()
	return f.Sync()
}

// rewrite writes the file of a volume anew.
func (d *store) rewrite(kind string, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode volume: %w", err)
	}
	return durable.Write(filepath.Join(d.Dir, kind, r.ID, recordFile), 0o600, text)
}

// remove removes a volume or a snapshot, if there is one. It is gone under its name at once.
func (d *store) remove(kind, id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	top := filepath.Join(d.Dir, kind)
	d.mu.Lock()
	temp := filepath.Join(top, fmt.Sprintf(".removing-%s-%d", id, time.Now().UnixNano()))
	err := os.Rename(filepath.Join(top, id), temp)
	d.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", id, err)
	}
	return safepath.RemoveAll(temp)
}

// free returns the free bytes of the file system. Before the first volume it measures the nearest directory above that exists.
func (d *store) free() (int64, error) {
	for dir := d.Dir; ; dir = filepath.Dir(dir) {
		var s unix.Statfs_t
		err := unix.Statfs(dir, &s)
		if err == nil {
			return int64(s.Bavail) * s.Bsize, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return 0, fmt.Errorf("measure file system: %w", err)
		}
	}
}
