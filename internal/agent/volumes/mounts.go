// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// Mounts says what the runtime mounts into a container for its volumeMounts. Of volumes that are images, images says which ones they are.
func (m *Manager) Mounts(ctx context.Context, pod *corev1.Pod, container *corev1.Container, env []environ.Var, images map[string]*runtimeapi.ImageSpec) ([]*runtimeapi.Mount, error) {
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
			return nil, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", mount.Name) // upstream's words
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
		if volume.Image != nil {
			image := images[mount.Name]
			switch {
			case image == nil:
				return nil, fmt.Errorf("volume %q has no image yet", mount.Name)
			case filepath.IsAbs(sub):
				return nil, fmt.Errorf("error SubPath `%s` must not be an absolute path", sub) // upstream's words
			case slices.Contains(strings.Split(filepath.ToSlash(sub), "/"), ".."):
				return nil, fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub) // upstream's words
			}
			out = append(out, &runtimeapi.Mount{ContainerPath: target, Readonly: true, Propagation: propagation(mount.MountPropagation), Image: image, ImageSubPath: sub})
			continue
		}
		source, err := m.Path(ctx, pod, volume)
		if err != nil {
			return nil, err
		}
		if sub != "" {
			source, err = m.subPath(pod, container, i, source, sub, mount.Name, volume)
			if err != nil {
				return nil, err
			}
		}
		out = append(out, &runtimeapi.Mount{
			HostPath:      source,
			ContainerPath: target,
			Readonly:      mount.ReadOnly || readOnly(volume),
			Propagation:   propagation(mount.MountPropagation),
		})
	}
	return out, nil
}

// readOnly says whether no container may write to a volume, whatever its mount says. The contents of the first four types belong to the
// node, which rewrites them as root: a container that could write there could lead it elsewhere (CVE-2017-1002102).
func readOnly(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.Projected != nil || v.DownwardAPI != nil ||
		v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly ||
		v.NFS != nil && v.NFS.ReadOnly
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

// subPath makes part of a volume mountable. The part is found without ever leaving the volume (links are followed, but none that lead
// out), and what was found is bound under the pod's directory; a link that somebody swaps in later changes nothing. Its contents are
// not opened: the open of a FIFO would wait for a writer.
func (m *Manager) subPath(pod *corev1.Pod, container *corev1.Container, index int, volumePath, sub, name string, volume *corev1.Volume) (string, error) {
	if filepath.IsAbs(sub) || !filepath.IsLocal(sub) {
		return "", fmt.Errorf("subPath %q of volume %q leaves the volume", sub, name)
	}
	root, err := os.OpenRoot(volumePath)
	if err != nil {
		return "", fmt.Errorf("open volume %q: %w", name, err)
	}
	defer root.Close()
	opened, err := safepath.Find(volumePath, sub)
	if errors.Is(err, fs.ErrNotExist) {
		mode := fs.FileMode(0o750)
		if volume.EmptyDir != nil {
			mode = 0o777
		}
		if err := root.MkdirAll(sub, mode); err != nil {
			return "", fmt.Errorf("make subPath %q of volume %q: %w", sub, name, err)
		}
		if err := root.Chmod(sub, mode); err != nil {
			return "", fmt.Errorf("open subPath %q of volume %q: %w", sub, name, err)
		}
		opened, err = safepath.Find(volumePath, sub)
	}
	if err != nil {
		return "", fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", name, container.Name, err) // upstream's words
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return "", fmt.Errorf("look at subPath %q of volume %q: %w", sub, name, err)
	}

	target := filepath.Join(m.PodDir(pod.UID), "volume-subpaths", name, container.Name, strconv.Itoa(index))
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
