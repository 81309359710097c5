// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package emptydir implements emptyDir volumes: directories that live as long as their pod, on the node's disk, in memory or of huge pages.
//
// SetUp sets the mode and the group of a new directory once: later its containers may change them. Until that is done, a file that
// containers do not see marks the directory, so that an agent that was killed in between does it again:
//
//	ROOT/pods/UID/plugins/kubernetes.io~empty-dir/NAME.new
//	ROOT/pods/UID/volumes/kubernetes.io~empty-dir/NAME
package emptydir

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
const Name = "kubernetes.io/empty-dir"

type plugin struct{ host *volumes.Host }

// New makes the plug-in.
func New(host *volumes.Host) volumes.Plugin { return plugin{host} }

func (p plugin) Name() string { return Name }

func (p plugin) CanSupport(spec *volumes.Spec) bool { return spec.Volume.EmptyDir != nil }

// SetUp creates the directory, and mounts memory or huge pages there.
func (p plugin) SetUp(_ context.Context, spec *volumes.Spec) error {
	dir, mark := p.Path(spec), p.mark(spec.Pod.UID, spec.Name())
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(os.MkdirAll(filepath.Dir(mark), 0o750), os.WriteFile(mark, nil, 0o600)); err != nil {
			return fmt.Errorf("mark emptyDir as new: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("make emptyDir: %w", err)
	}
	mounted, err := p.mount(spec, dir)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(mark); err != nil && !mounted {
		return nil // it exists, and belongs to its containers
	}
	mode := fs.FileMode(0o777)
	if group := spec.FSGroup(); group != nil {
		if err := os.Chown(dir, -1, int(*group)); err != nil {
			return fmt.Errorf("give emptyDir to group: %w", err)
		}
		mode |= fs.ModeSetgid
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("open emptyDir: %w", err)
	}
	if err := os.RemoveAll(mark); err != nil {
		return fmt.Errorf("unmark emptyDir: %w", err)
	}
	return nil
}

// mount mounts the medium, unless it is mounted, and returns whether it has mounted it.
func (p plugin) mount(spec *volumes.Spec, dir string) (bool, error) {
	switch source, medium := spec.Volume.EmptyDir, spec.Volume.EmptyDir.Medium; {
	case medium == corev1.StorageMediumMemory:
		var size int64
		if source.SizeLimit != nil {
			size = source.SizeLimit.Value()
		}
		return p.host.MountMemory(dir, size)
	case strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePages)):
		return p.huge(spec.Pod, dir, medium)
	case medium != corev1.StorageMediumDefault:
		return false, fmt.Errorf("unknown storage medium %q", medium)
	}
	return false, nil
}

// mark returns the path of the file that marks a new directory.
func (p plugin) mark(pod types.UID, name string) string {
	return p.host.PluginDir(pod, Name, name) + ".new"
}

func (p plugin) TearDown(_ context.Context, volume volumes.Reconstructed) error {
	return errors.Join(p.host.Remove(volume.Dir), os.RemoveAll(p.mark(volume.PodUID, volume.Name)))
}

func (p plugin) Path(spec *volumes.Spec) string {
	return p.host.VolumeDir(spec.Pod.UID, Name, spec.Name())
}

// Attributes returns a mode for subPaths that lets all users of the pod write there, as in the directory itself.
func (p plugin) Attributes(spec *volumes.Spec) volumes.Attributes {
	out := volumes.Attributes{SubPathMode: 0o777, Measure: volumes.MeasureFileSystem}
	if spec.Volume.EmptyDir.Medium == corev1.StorageMediumDefault {
		out.Measure = volumes.MeasureFiles
	}
	return out
}
