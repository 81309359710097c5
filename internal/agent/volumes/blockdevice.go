// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// DeviceHolder is implemented by a [Mounter] that can keep block devices open. The kernel does not give the name of an open device to
// another one.
type DeviceHolder interface {
	// HoldDevice opens a device at a path, unless that is done already.
	HoldDevice(path string) error
	// ReleaseDevice undoes it.
	ReleaseDevice(path string) error
}

// MapDevice maps a block device to a pod as kubelet does: its file is bound at the path global and kept open there, and the pod's link
// leads to it.
func (h *Host) MapDevice(device, global, link string) error {
	if err := os.MkdirAll(filepath.Dir(global), 0o750); err != nil {
		return fmt.Errorf("make map directory: %w", err)
	}
	mounted, err := h.mounts(global)
	if err != nil {
		return err
	}
	if len(mounted) == 0 {
		if err := h.bindDevice(device, global); err != nil {
			return err
		}
	}
	if have, err := os.Readlink(link); err != nil || have != device {
		if err := os.MkdirAll(filepath.Dir(link), 0o750); err != nil {
			return fmt.Errorf("make directory of links to devices: %w", err)
		}
		if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("replace link to device: %w", err)
		}
		if err := os.Symlink(device, link); err != nil {
			return fmt.Errorf("make link to device: %w", err)
		}
	}
	if holder, ok := h.Mounter.(DeviceHolder); ok {
		if err := holder.HoldDevice(global); err != nil {
			return fmt.Errorf("blkUtil.AttachFileDevice failed. globalMapPath:%s, podUID: %s: %w", filepath.Dir(global), filepath.Base(global),
				err) // upstream's words
		}
	}
	return nil
}

// bindDevice binds the file of a device. It follows no link.
func (h *Host) bindDevice(device, global string) error {
	f, err := os.OpenFile(global, os.O_CREATE|os.O_RDONLY, 0o640)
	if err != nil {
		return fmt.Errorf("make mount point of device: %w", err)
	}
	f.Close()
	source, err := os.OpenFile(device, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("open device: %w", err)
	}
	defer source.Close()
	if err := h.Mounter.Bind(fmt.Sprintf("/proc/self/fd/%d", source.Fd()), global); err != nil {
		return fmt.Errorf("failed to bind mount devicePath: %s to linkPath %s: %w", device, global, err) // upstream's words
	}
	return nil
}

// UnmapDevice undoes MapDevice, but for the pod's link.
func (h *Host) UnmapDevice(global string) error {
	if holder, ok := h.Mounter.(DeviceHolder); ok {
		if err := holder.ReleaseDevice(global); err != nil {
			return fmt.Errorf("blkUtil.DetachFileDevice failed. globalUnmapPath:%s, podUID: %s: %w", filepath.Dir(global),
				filepath.Base(global), err) // upstream's words
		}
	}
	if err := h.Mounter.Unmount(global); err != nil {
		return fmt.Errorf("unmap device %s: %w", global, err)
	}
	if err := os.Remove(global); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmap device: %w", err)
	}
	return nil
}
