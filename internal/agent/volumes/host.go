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
	"strings"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/safepath"
	"github.com/mortise-dev/mortise/internal/agent/volumes/atomicwriter"
)

// Sources provides the contents of volumes.
type Sources interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Token(
		ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest,
	) (*authenticationv1.TokenRequest, error)
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	// TrustBundles returns all trust bundles of a signer.
	TrustBundles(ctx context.Context, signer string) ([]*certificatesv1.ClusterTrustBundle, error)
	// RequestCertificate creates a request for a pod's certificate. It adds the identities of the node and of the service account.
	RequestCertificate(ctx context.Context, request *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest, error)
	// CertificateRequest returns such a request as the watch last showed it.
	CertificateRequest(ctx context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error)
}

// Mounter mounts and unmounts. It is injected, because mounting needs privileges.
type Mounter interface {
	Tmpfs(dir string, size int64) error
	// Huge mounts huge pages of the given size in bytes.
	Huge(dir string, page int64) error
	// Mount mounts a source as a type of file system, like mount(8).
	Mount(ctx context.Context, source, dir, kind string, options []string) error
	Unmount(dir string) error
	// Bind mounts a file or directory, given as an open path, on the target.
	Bind(source, target string) error
	IsMountPoint(dir string) (bool, error)
	// Below returns the mount points below a directory, outer mounts before inner ones.
	Below(dir string) ([]string, error)
}

// Host is what the node provides to its volume plug-ins.
type Host struct {
	Root    string // the node's directory, with kubelet's layout
	Sources Sources
	Mounter Mounter
	Clock   clock.PassiveClock
	// The following are for the downward API.
	HostIPs     func() []string // returns the current addresses; nil: none
	Allocatable corev1.ResourceList
	// Warn records an event for a pod; nil: no event is recorded.
	Warn func(pod *corev1.Pod, reason, message string)
	// Event records an event for an object; nil: no event is recorded.
	Event func(object runtime.Object, kind, reason, message string)
	// The following are for CSI volumes. Nil: there are none.
	Drivers     Drivers
	Attachments Attachments
	Claims      Claims
	Operations  Operations
	NodeName    string
	// Expected are the drivers that pods wait for until they register.
	Expected []string
	// Jitter delays the renewal of a certificate; nil: up to five minutes, at random.
	Jitter func() time.Duration
}

// PodDir returns the directory of one pod.
func (h *Host) PodDir(pod types.UID) string {
	return filepath.Join(h.Root, "pods", string(pod))
}

// VolumeDir returns the directory of one volume of a pod. Containers cannot write to its parent.
func (h *Host) VolumeDir(pod types.UID, plugin, name string) string {
	return filepath.Join(h.PodDir(pod), "volumes", escape(plugin), name)
}

// DeviceDir returns the directory with the links to a pod's block devices.
func (h *Host) DeviceDir(pod types.UID, plugin string) string {
	return filepath.Join(h.PodDir(pod), "volumeDevices", escape(plugin))
}

// PluginDir returns the directory in which a plug-in keeps its state of a volume. Containers never see it.
func (h *Host) PluginDir(pod types.UID, plugin, name string) string {
	return filepath.Join(h.PodDir(pod), "plugins", escape(plugin), name)
}

// ContainerDir returns the directory of a container's termination messages.
func (h *Host) ContainerDir(pod types.UID, container string) string {
	return filepath.Join(h.PodDir(pod), "containers", container)
}

// escape turns a plug-in's name into the name of a directory.
func escape(plugin string) string { return strings.ReplaceAll(plugin, "/", "~") }

// WriteFiles makes a volume's directory hold exactly the files, for the pod's group. With memory, they never reach a disk.
func (h *Host) WriteFiles(spec *Spec, dir string, memory bool, files map[string]atomicwriter.File) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make volume directory: %w", err)
	}
	if memory {
		if _, err := h.MountMemory(dir, 0); err != nil {
			return err
		}
	}
	_, err := atomicwriter.Write(dir, files, spec.FSGroup(), h.Clock.Now())
	return err
}

// MountMemory mounts memory at dir, unless something is mounted there. A size of zero means half of the machine's memory. It returns
// whether it mounted something.
func (h *Host) MountMemory(dir string, size int64) (bool, error) {
	mounted, err := h.Mounter.IsMountPoint(dir)
	if err != nil || mounted {
		return false, err
	}
	if err := h.Mounter.Tmpfs(dir, size); err != nil {
		return false, fmt.Errorf("mount memory at %s: %w", dir, err)
	}
	return true, nil
}

// Remove unmounts the mounts at a directory and below it, and removes the directory. It follows no links, and removes
// nothing if a mount remains: that would delete the data of others.
func (h *Host) Remove(dir string) error {
	if err := h.unmount(dir); err != nil {
		return err
	}
	return safepath.RemoveAll(dir)
}

// unmount unmounts what is mounted at a directory and below it, inner mounts first.
func (h *Host) unmount(dir string) error {
	mounts, err := h.mounts(dir)
	if err != nil {
		return err
	}
	for _, path := range slices.Backward(mounts) {
		if err := h.Mounter.Unmount(path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	if mounts, err = h.mounts(dir); err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("still mounted below %s: %q", dir, mounts)
	}
	return nil
}

// mounts lists what is mounted at a directory and below it, outer mounts before inner ones.
func (h *Host) mounts(dir string) ([]string, error) {
	// Only read the list: a mount whose server is gone does not respond.
	all, err := h.Mounter.Below(filepath.Dir(dir))
	if err != nil {
		return nil, fmt.Errorf("look for mounts below %s: %w", dir, err)
	}
	return slices.DeleteFunc(all, func(path string) bool { return path != dir && !strings.HasPrefix(path, dir+"/") }), nil
}

// reconstruct lists the volumes of a pod that are on the disk, by the directory name of their plug-in.
func (h *Host) reconstruct(pod types.UID) (map[string][]Reconstructed, error) {
	out := map[string][]Reconstructed{}
	top := filepath.Join(h.PodDir(pod), "volumes")
	plugins, err := directories(top)
	if err != nil {
		return nil, err
	}
	for _, plugin := range plugins {
		names, err := directories(filepath.Join(top, plugin))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			out[plugin] = append(out[plugin], Reconstructed{PodUID: pod, Name: name, Dir: filepath.Join(top, plugin, name)})
		}
	}
	return out, nil
}

// reconstructDevices lists the block devices of a pod that a plug-in has linked.
func (h *Host) reconstructDevices(pod types.UID, plugin string) ([]Reconstructed, error) {
	dir := h.DeviceDir(pod, plugin)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("list block devices: %w", err)
	}
	var out []Reconstructed
	for _, e := range entries {
		out = append(out, Reconstructed{PodUID: pod, Name: e.Name(), Dir: filepath.Join(dir, e.Name())})
	}
	return out, nil
}

// directories returns the directories in a directory, without symbolic links.
func directories(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
