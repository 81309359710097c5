// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package hostpath implements hostPath volumes: files and directories of the host. The plug-in keeps no state, and removes nothing.
package hostpath

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Name is the plug-in's name.
const Name = "kubernetes.io/host-path"

type plugin struct{}

// New makes the plug-in.
func New(*volumes.Host) volumes.Plugin { return plugin{} }

func (plugin) Name() string { return Name }

func (plugin) CanSupport(spec *volumes.Spec) bool { return source(spec) != nil }

func source(spec *volumes.Spec) *corev1.HostPathVolumeSource {
	if spec.PersistentVolume != nil {
		return spec.PersistentVolume.Spec.HostPath
	}
	return spec.Volume.HostPath
}

// SetUp checks or creates the path, as the type of the hostPath requires.
func (plugin) SetUp(_ context.Context, spec *volumes.Spec) error { return check(source(spec)) }

// TearDown does nothing: the data belong to the host.
func (plugin) TearDown(context.Context, volumes.Reconstructed) error { return nil }

func (plugin) Path(spec *volumes.Spec) string { return source(spec).Path }

// Attributes returns the measurement of claimed volumes, as for any claimed volume.
func (plugin) Attributes(spec *volumes.Spec) volumes.Attributes {
	if spec.PersistentVolume != nil {
		return volumes.Attributes{Measure: volumes.MeasureFileSystem}
	}
	return volumes.Attributes{}
}

// check checks or creates the path, as the type of the hostPath requires.
func check(h *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	info, err := os.Stat(h.Path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return fmt.Errorf("look at hostPath: %w", err)
	}
	refuse := func(what string) error { return fmt.Errorf("hostPath type check failed: %s is not a %s", h.Path, what) }
	switch kind {
	case corev1.HostPathUnset:
		if missing {
			// The runtime binds an existing file; like kubelet, check creates a missing path as a directory.
			return os.MkdirAll(h.Path, 0o755)
		}
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(h.Path, 0o755)
		}
		if !info.IsDir() {
			return refuse("directory")
		}
	case corev1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(h.Path, os.O_CREATE|os.O_RDWR, 0o644)
			if err != nil {
				return fmt.Errorf("make hostPath file: %w", err)
			}
			return f.Close()
		}
		if info.IsDir() {
			return refuse("file")
		}
	case corev1.HostPathDirectory:
		if missing || !info.IsDir() {
			return refuse("directory")
		}
	case corev1.HostPathFile:
		if missing || !info.Mode().IsRegular() {
			return refuse("file")
		}
	case corev1.HostPathSocket:
		if missing || info.Mode()&fs.ModeSocket == 0 {
			return refuse("socket file")
		}
	case corev1.HostPathCharDev:
		if missing || info.Mode()&fs.ModeCharDevice == 0 {
			return refuse("character device")
		}
	case corev1.HostPathBlockDev:
		if missing || info.Mode()&fs.ModeDevice == 0 || info.Mode()&fs.ModeCharDevice != 0 {
			return refuse("block device")
		}
	}
	return nil
}
