// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"

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
	from, err := nfsSource(source.Server, source.Path)
	if err != nil {
		return err
	}
	for _, option := range options {
		if strings.ContainsFunc(option, unicode.IsControl) {
			return fmt.Errorf("mount option %q has control characters", option)
		}
	}
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
	if err := m.Mounter.Mount(ctx, from, dir, "nfs", slices.Compact(options)); err != nil {
		_ = os.Remove(dir) // only if it is empty
		return err
	}
	return nil
}

// serverName is a host's name; underscores are not in the standard, but in use.
var serverName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9.])?$`)

// nfsSource is what mount(8) mounts of a server. A server or path that mount or its helpers could take for an option, for a list of
// servers or for another split of the two is refused; the API server takes any text for a server.
func nfsSource(server, path string) (string, error) {
	address, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(server, "["), "]"))
	switch {
	case err == nil && address.Is6() && serverZone(address.Zone()):
		server = "[" + strings.Trim(server, "[]") + "]"
	case !serverName.MatchString(server):
		return "", fmt.Errorf("NFS server %q is not a host name or an IP address", server)
	}
	if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return unicode.IsControl(r) || unicode.IsSpace(r) }) {
		return "", fmt.Errorf("NFS path %q is not an absolute path without white space and control characters", path)
	}
	return server + ":" + path, nil
}

// serverZone says whether an address's zone is none, or a plain name of an interface.
func serverZone(zone string) bool { return zone == "" || serverName.MatchString(zone) }
