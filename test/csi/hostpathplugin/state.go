// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	topologyKey = "topology.hostpath.csi/node"
	defaultSize = 1 << 20
	capacity    = 1 << 40 // of all volumes, and of each
)

// volume is what the driver knows of a volume.
type volume struct {
	ID, Name         string
	Size             int64
	Block, Ephemeral bool
	Snapshot, Source string // what it was filled from
	Attached         string // the node
	Staged           string // the path
	Published        []string
	Single           bool // Published may have one entry only
	Mutable          map[string]string
}

// snapshot is what the driver knows of a snapshot.
type snapshot struct {
	ID, Name, Source, Group string
	Size                    int64
	Block                   bool
	Made                    *timestamppb.Timestamp
}

// group is a group of snapshots.
type group struct {
	ID, Name  string
	Sources   []string
	Snapshots []string
	Made      *timestamppb.Timestamp
}

// driver is the driver. Its calls exclude each other.
type driver struct {
	settings
	mu        sync.Mutex
	Volumes   map[string]*volume
	Snapshots map[string]*snapshot
	Groups    map[string]*group
}

// open reads the state of an earlier process.
func open(s settings) (*driver, error) {
	d := &driver{settings: s, Volumes: map[string]*volume{}, Snapshots: map[string]*snapshot{}, Groups: map[string]*group{}}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(d.file())
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	return d, json.Unmarshal(text, d)
}

func (d *driver) file() string { return filepath.Join(d.dir, "state.json") }

// path is where a volume or a snapshot is.
func (d *driver) path(id string) string { return filepath.Join(d.dir, id) }

// save writes the state. It returns an error of gRPC.
func (d *driver) save() error {
	text, err := json.Marshal(d)
	if err == nil {
		err = os.WriteFile(d.file()+".new", text, 0o600)
	}
	if err == nil {
		err = os.Rename(d.file()+".new", d.file())
	}
	return internal(err)
}

// internal makes an error of gRPC.
func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}

// have returns a volume that must exist.
func (d *driver) have(id string) (*volume, error) {
	if id == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume ID")
	}
	v := d.Volumes[id]
	if v == nil {
		return nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
	}
	return v, nil
}

// named returns the volume with a name; nil: none.
func (d *driver) named(name string) *volume {
	for _, v := range d.Volumes {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// accepts reports whether all parameters of a modification are known.
func (d *driver) accepts(parameters map[string]string) error {
	known := strings.Split(d.mutable, ",")
	for name := range parameters {
		if !d.modify || !slices.Contains(known, name) {
			return status.Errorf(codes.InvalidArgument, "parameter %s is not known", name)
		}
	}
	return nil
}

// sized returns the size that a range requires.
func sized(r *csipb.CapacityRange) (int64, error) {
	size := max(r.GetRequiredBytes(), defaultSize)
	if limit := r.GetLimitBytes(); limit > 0 && limit < r.GetRequiredBytes() || size > capacity {
		return 0, status.Errorf(codes.OutOfRange, "no volume is between %d and %d bytes", r.GetRequiredBytes(), limit)
	}
	return size, nil
}

// where is the topology of the driver's volumes.
func (d *driver) where() []*csipb.Topology {
	if !d.topology {
		return nil
	}
	return []*csipb.Topology{{Segments: map[string]string{topologyKey: d.node}}}
}
