// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package local implements local persistent volumes: directories and block devices of the node. The plug-in creates none of these.
//
// A device is mapped to a pod where kubelet maps it, so that a node is taken over either way:
//
//	ROOT/plugins/kubernetes.io~local-volume/volumeDevices/PV/UID     the device, bound and kept open
//	ROOT/pods/UID/volumeDevices/kubernetes.io~local-volume/PV        link to the device
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/local-volume"

type plugin struct{ host *volumes.Host }

var _ volumes.BlockMapper = plugin{}

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin { return plugin{host} }

func (plugin) Name() string { return Name }

func (plugin) CanSupport(spec *volumes.Spec) bool {
	return spec.PersistentVolume != nil && spec.PersistentVolume.Spec.Local != nil
}

// SetUp checks that the directory exists, or maps the device.
func (p plugin) SetUp(_ context.Context, spec *volumes.Spec) error {
	path := spec.PersistentVolume.Spec.Local.Path
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("look at local volume: %w", err)
	}
	device := info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0
	switch {
	case !block(spec) && device:
		return fmt.Errorf("local volume %s is a block device; this node does not make file systems on it", path)
	case !block(spec):
		return nil
	case !device:
		return mapFailed(fmt.Errorf("local volume %s is not a block device", path))
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return mapFailed(fmt.Errorf("find device of local volume: %w", err))
	}
	// The link is made before the rest, and removed after it: it says that the pod uses the device.
	link := p.DevicePath(spec)
	if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
		return mapFailed(fmt.Errorf("make directory of links to devices: %w", err))
	}
	if err := os.Symlink(path, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return mapFailed(fmt.Errorf("make link to device: %w", err))
	}
	if err := p.host.MapDevice(path, p.mapPath(spec.Name(), spec.Pod.UID), link); err != nil {
		return mapFailed(err)
	}
	return nil
}

// mapFailed returns the failure of a block device, with kubelet's words.
func mapFailed(err error) error {
	return &volumes.StepError{Step: "MapVolume.MapBlockVolume failed", Reason: "FailedMapVolume", Err: err}
}

// mapPath is where a pod's device is bound.
func (p plugin) mapPath(name string, pod types.UID) string {
	return filepath.Join(p.host.Root, "plugins", strings.ReplaceAll(Name, "/", "~"), "volumeDevices", name, string(pod))
}

// DevicePath returns the link to the pod's device.
func (p plugin) DevicePath(spec *volumes.Spec) string {
	if !block(spec) {
		return ""
	}
	return filepath.Join(p.host.DeviceDir(spec.Pod.UID, Name), spec.Name())
}

// TearDownDevice undoes the map of a device.
func (p plugin) TearDownDevice(_ context.Context, r volumes.Reconstructed) error {
	global := p.mapPath(r.Name, r.PodUID)
	if err := p.host.UnmapDevice(global); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(global)) // if no other pod has the device
	if err := os.Remove(r.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove link to device: %w", err)
	}
	return nil
}

// TearDown does nothing: the data are the host's.
func (plugin) TearDown(context.Context, volumes.Reconstructed) error { return nil }

// Path returns the directory.
func (plugin) Path(spec *volumes.Spec) string {
	if block(spec) {
		return ""
	}
	return spec.PersistentVolume.Spec.Local.Path
}

func (plugin) Attributes(spec *volumes.Spec) volumes.Attributes {
	if block(spec) {
		return volumes.Attributes{}
	}
	return volumes.Attributes{Measure: volumes.MeasureFileSystem}
}

// block reports whether the volume is a block device.
func block(spec *volumes.Spec) bool {
	mode := spec.PersistentVolume.Spec.VolumeMode
	return mode != nil && *mode == corev1.PersistentVolumeBlock
}
