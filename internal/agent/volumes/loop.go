// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

var _ DeviceHolder = System{}

// loopAttempts bounds the attempts to get a loop device: another process may take the one that is free.
const loopAttempts = 16

// The places of loop devices.
const (
	loopControl = "/dev/loop-control"
	blockSysFS  = "/sys/block"
)

// HoldDevice makes a loop device on the file, as kubelet does. It does nothing on a machine without loop devices.
func (System) HoldDevice(path string) error {
	if found, err := loopOn(blockSysFS, path); found != "" || err != nil {
		return err
	}
	control, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open control of loop devices: %w", err)
	}
	defer control.Close()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		file, err = os.Open(path)
	}
	if err != nil {
		return fmt.Errorf("open device: %w", err)
	}
	defer file.Close()
	for range loopAttempts {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("get a loop device: %w", err)
		}
		switch err := setLoop(fmt.Sprintf("/dev/loop%d", number), file); {
		case errors.Is(err, unix.EBUSY):
		case err != nil:
			return fmt.Errorf("makeLoopDevice failed for path %s: %w", path, err) // upstream's words
		default:
			return nil
		}
	}
	return fmt.Errorf("makeLoopDevice failed for path %s: other processes took %d free ones", path, loopAttempts)
}

// setLoop gives a loop device its file.
func setLoop(device string, file *os.File) error {
	loop, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer loop.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(file.Fd())); err != nil {
		return os.NewSyscallError("ioctl LOOP_SET_FD", err)
	}
	var info unix.LoopInfo64
	copy(info.File_name[:len(info.File_name)-1], file.Name()) // it only informs; the kernel has the whole path
	if err := unix.IoctlLoopSetStatus64(int(loop.Fd()), &info); err != nil {
		return errors.Join(os.NewSyscallError("ioctl LOOP_SET_STATUS64", err), clearLoop(loop))
	}
	return nil
}

func clearLoop(loop *os.File) error {
	return os.NewSyscallError("ioctl LOOP_CLR_FD", unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0))
}

// ReleaseDevice removes the loop device on the file, if there is one.
func (System) ReleaseDevice(path string) error {
	device, err := loopOn(blockSysFS, path)
	if device == "" || err != nil {
		return err
	}
	loop, err := os.OpenFile(device, os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open loop device: %w", err)
	}
	defer loop.Close()
	if err := clearLoop(loop); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("removeLoopDevice failed for path %s: %w", path, err) // upstream's words
	}
	return nil
}

// loopOn returns the loop device on a file, or nothing. The kernel says which file each has; the file may be deleted.
func loopOn(sys, path string) (string, error) {
	found, err := filepath.Glob(filepath.Join(sys, "loop*", "loop", "backing_file"))
	if err != nil {
		return "", fmt.Errorf("list loop devices: %w", err)
	}
	for _, name := range found {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it was removed meanwhile
		}
		if backs(string(text), path) {
			return "/dev/" + filepath.Base(filepath.Dir(filepath.Dir(name))), nil
		}
	}
	return "", nil
}

// backs reports whether the kernel's text names a file.
func backs(text, path string) bool {
	text = strings.TrimSuffix(text, "\n")
	return text == path || strings.TrimSpace(strings.TrimSuffix(text, "(deleted)")) == path
}
