// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// claimed follows a claim to its persistent volume.
func (m *Manager) claimed(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolume, error) {
	name := pod.Name + "-" + v.Name
	if v.PersistentVolumeClaim != nil {
		name = v.PersistentVolumeClaim.ClaimName
	}
	claim, err := m.Sources.Claim(ctx, pod.Namespace, name)
	if err != nil {
		return nil, fmt.Errorf("get claim %s: %w", name, err)
	}
	if claim.Status.Phase != corev1.ClaimBound || claim.Spec.VolumeName == "" {
		return nil, fmt.Errorf("claim %s is not bound", name)
	}
	pv, err := m.Sources.Volume(ctx, claim.Spec.VolumeName)
	if err != nil {
		return nil, fmt.Errorf("get persistent volume %s: %w", claim.Spec.VolumeName, err)
	}
	return pv, nil
}

// setUpClaimed has a persistent volume be there for the pod.
func (m *Manager) setUpClaimed(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, pv *corev1.PersistentVolume) error {
	switch {
	case pv.Spec.HostPath != nil:
		return checkHostPath(pv.Spec.HostPath)
	case pv.Spec.Local != nil:
		if _, err := os.Stat(pv.Spec.Local.Path); err != nil {
			return fmt.Errorf("look at local volume: %w", err)
		}
		return nil
	case pv.Spec.NFS != nil:
		readOnly := v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
		return m.nfs(ctx, pod, pv.Name, pv.Spec.NFS, readOnly, mountOptions(pv))
	}
	return fmt.Errorf("persistent volume %s is of a kind that this node does not support", pv.Name)
}

// claimedPath is where a persistent volume lies on the node.
func (m *Manager) claimedPath(pod *corev1.Pod, pv *corev1.PersistentVolume) (string, error) {
	switch {
	case pv.Spec.HostPath != nil:
		return pv.Spec.HostPath.Path, nil
	case pv.Spec.Local != nil:
		return pv.Spec.Local.Path, nil
	case pv.Spec.NFS != nil:
		return m.volumeDir(pod.UID, "nfs", pv.Name), nil
	}
	return "", fmt.Errorf("persistent volume %s is of a kind that this node does not support", pv.Name)
}

// mountOptions are a persistent volume's: the old annotation wins, as with kubelet.
func mountOptions(pv *corev1.PersistentVolume) []string {
	if text, ok := pv.Annotations[corev1.MountOptionAnnotation]; ok {
		return strings.Split(text, ",")
	}
	return pv.Spec.MountOptions
}

// nfs mounts a directory of a server. What was tried in vain leaves nothing. The list of mounts is asked whether it is there, not the
// directory: a server that is gone would not answer.
func (m *Manager) nfs(ctx context.Context, pod *corev1.Pod, name string, source *corev1.NFSVolumeSource, readOnly bool, options []string) error {
	dir := m.volumeDir(pod.UID, "nfs", name)
	mounts, err := m.Mounter.Below(filepath.Dir(dir))
	if err != nil {
		return fmt.Errorf("look for mounts: %w", err)
	}
	if slices.Contains(mounts, dir) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make volume directory: %w", err)
	}
	options = slices.Clone(options)
	if readOnly {
		options = append(options, "ro")
	}
	slices.Sort(options)
	server := source.Server
	if ip := net.ParseIP(server); ip != nil && ip.To4() == nil {
		server = "[" + server + "]"
	}
	if err := m.Mounter.Mount(ctx, server+":"+source.Path, dir, "nfs", slices.Compact(options)); err != nil {
		_ = os.Remove(dir) // only if it is empty
		return err
	}
	return nil
}
