// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// program runs a program, and returns its output.
func program(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// makeVolume makes the directory or the file of a volume, with the contents of another; source may be empty.
func makeVolume(path, source string, size int64, block bool) error {
	if source != "" {
		if _, err := program("cp", "-a", "--sparse=always", source, path); err != nil {
			return err
		}
	}
	if block {
		return grow(path, size)
	}
	if source != "" {
		return nil
	}
	if err := os.Mkdir(path, 0o777); err != nil {
		return err
	}
	return os.Chmod(path, 0o777) // whatever the mask is
}

// grow makes the file of a volume larger, and its loop device.
func grow(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return err
	}
	device, err := deviceOf(path)
	if err != nil || device == "" {
		return err
	}
	_, err = program("losetup", "-c", device)
	return err
}

// deviceOf returns the loop device of a file; empty: none.
func deviceOf(path string) (string, error) {
	out, err := program("losetup", "-n", "-O", "NAME", "-j", path)
	name, _, _ := strings.Cut(out, "\n")
	return strings.TrimSpace(name), err
}

// releaseDevice frees the loop device of a file.
func releaseDevice(path string) error {
	device, err := deviceOf(path)
	if err != nil || device == "" {
		return err
	}
	_, err = program("losetup", "-d", device)
	return err
}

// remove removes a volume or a snapshot.
func remove(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if err := releaseDevice(path); err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

// publish binds a volume to a path, which it makes.
func publish(source, target string, block, readOnly bool) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if block {
		device, err := deviceOf(source)
		if err != nil {
			return err
		}
		if device == "" {
			if device, err = program("losetup", "-f", "--show", source); err != nil {
				return err
			}
		}
		f, err := os.OpenFile(target, os.O_CREATE|os.O_RDWR, 0o660)
		if err != nil {
			return err
		}
		f.Close()
		source = device
	} else if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	if !readOnly {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return errors.Join(fmt.Errorf("make %s read-only: %w", target, err), unpublish(target))
	}
	return nil
}

// unpublish undoes publish.
func unpublish(target string) error {
	if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
