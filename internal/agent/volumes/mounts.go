// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// Mounts returns the mounts of a container for its volumeMounts. The argument images has the images of image volumes.
func (m *Manager) Mounts(
	ctx context.Context, pod *corev1.Pod, container *corev1.Container, env []environ.Var, images map[string]*runtimeapi.ImageSpec,
) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i, mount := range container.VolumeMounts {
		var volume *corev1.Volume
		for j := range pod.Spec.Volumes {
			if pod.Spec.Volumes[j].Name == mount.Name {
				volume = &pod.Spec.Volumes[j]
			}
		}
		if volume == nil {
			return nil, fmt.Errorf("cannot find volume %q to mount into container %q", mount.Name, container.Name)
		}
		if mode := mount.RecursiveReadOnly; mode != nil && *mode == corev1.RecursiveReadOnlyEnabled {
			const text = "volume %q requested recursive read-only mode, but it is not supported by the runtime" // upstream's words
			return nil, fmt.Errorf(text, mount.Name)
		}
		target := mount.MountPath
		if !strings.HasPrefix(target, "/") {
			target = "/" + target
		}
		sub := mount.SubPath
		if mount.SubPathExpr != "" {
			sub = environ.ExpandAll([]string{mount.SubPathExpr}, env)[0]
			if strings.Contains(sub, "$(") {
				return nil, fmt.Errorf("subPathExpr %q of volume %q has names that are not known", mount.SubPathExpr, mount.Name)
			}
		}
		spec, plugin, err := m.find(ctx, pod, volume)
		if err != nil {
			return nil, err
		}
		attributes := plugin.Attributes(spec)
		made := &runtimeapi.Mount{}
		if runtime, ok := plugin.(RuntimeMounter); ok {
			made, err = runtime.RuntimeMount(spec, images[mount.Name], sub)
		} else if made.HostPath, err = path(plugin, spec); err == nil && sub != "" {
			made.HostPath, err = m.subPath(part{spec, container, i, made.HostPath, sub, cmp.Or(attributes.SubPathMode, 0o750)})
		}
		if err != nil {
			return nil, err
		}
		made.ContainerPath, made.Propagation = target, propagation(mount.MountPropagation)
		made.Readonly = mount.ReadOnly || spec.ReadOnly() || attributes.ReadOnly
		out = append(out, made)
	}
	return out, nil
}

func propagation(mode *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
	}
	switch *mode {
	case corev1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
	case corev1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}

// part is the subpath of a volume that a mount of a container names.
type part struct {
	spec      *Spec
	container *corev1.Container
	index     int // of the mount
	path, sub string
	mode      fs.FileMode // of missing directories
}

// subPath prepares a subpath for mounting. It finds the path without ever leaving the volume: it follows links, but none that lead out. It
// binds the path under the pod's directory, so that a link that a container swaps in later has no effect. It does not open the contents:
// opening a FIFO would wait for a writer.
func (m *Manager) subPath(p part) (string, error) {
	sub, name := p.sub, p.spec.Volume.Name
	if filepath.IsAbs(sub) || !filepath.IsLocal(sub) {
		return "", fmt.Errorf("subPath %q of volume %q leaves the volume", sub, name)
	}
	root, err := os.OpenRoot(p.path)
	if err != nil {
		return "", fmt.Errorf("open volume %q: %w", name, err)
	}
	defer root.Close()
	opened, err := safepath.Find(p.path, sub)
	if errors.Is(err, fs.ErrNotExist) {
		if err := root.MkdirAll(sub, p.mode); err != nil {
			return "", fmt.Errorf("make subPath %q of volume %q: %w", sub, name, err)
		}
		if err := root.Chmod(sub, p.mode); err != nil {
			return "", fmt.Errorf("open subPath %q of volume %q: %w", sub, name, err)
		}
		opened, err = safepath.Find(p.path, sub)
	}
	if err != nil {
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", name, p.container.Name, err) // upstream's words
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return "", fmt.Errorf("look at subPath %q of volume %q: %w", sub, name, err)
	}

	target := filepath.Join(m.PodDir(p.spec.Pod.UID), "volume-subpaths", name, p.container.Name, strconv.Itoa(p.index))
	if mounted, err := m.Mounter.IsMountPoint(target); err == nil && mounted {
		if err := m.Mounter.Unmount(target); err != nil {
			return "", fmt.Errorf("unmount old subPath %s: %w", target, err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return "", fmt.Errorf("make directory for subPath: %w", err)
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o750)
	} else {
		err = os.WriteFile(target, nil, 0o640)
	}
	if err != nil {
		return "", fmt.Errorf("make mount point for subPath: %w", err)
	}
	if err := m.Mounter.Bind(fmt.Sprintf("/proc/self/fd/%d", opened.Fd()), target); err != nil {
		return "", fmt.Errorf("bind subPath %q of volume %q: %w", sub, name, err)
	}
	return target, nil
}
