// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumes makes a pod's volumes on the node's disk, keeps their contents up to
// date, says how containers mount them, and takes them away again.
//
// The layout is kubelet's, since plug-ins and people know it:
//
//	ROOT/pods/UID/volumes/kubernetes.io~configmap/NAME/…
//	ROOT/pods/UID/volumes/kubernetes.io~empty-dir/NAME/…
//	ROOT/pods/UID/volume-subpaths/…
//	ROOT/pods/UID/containers/NAME/…      termination messages
//	ROOT/pods/UID/etc-hosts
//
// SetUp is level-driven: it is called before the pod's first container, and again
// whenever a source may have changed; what is right already is left alone. Volumes
// whose contents come from the API are written by Write, which swaps one symbolic
// link, so that a reader sees all of the old or all of the new.
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

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// Sources is where contents come from.
type Sources interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
	Token(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
	Claim(ctx context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Volume(ctx context.Context, name string) (*corev1.PersistentVolume, error)
	TrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	// TrustBundles are all of a signer.
	TrustBundles(ctx context.Context, signer string) ([]*certificatesv1.ClusterTrustBundle, error)
	// RequestCertificate creates a request for a pod's certificate, to which it adds the node's and the service account's identity.
	RequestCertificate(ctx context.Context, request *certificatesv1.PodCertificateRequest) (*certificatesv1.PodCertificateRequest, error)
	// CertificateRequest is such a request as it was seen last.
	CertificateRequest(ctx context.Context, namespace, name string) (*certificatesv1.PodCertificateRequest, error)
}

// Mounter mounts and unmounts; injected, since it needs privileges.
type Mounter interface {
	Tmpfs(dir string, size int64) error
	// Huge mounts huge pages of the size (in bytes).
	Huge(dir string, page int64) error
	// Mount mounts a source of a type of file system, as mount(8) does.
	Mount(ctx context.Context, source, dir, kind string, options []string) error
	Unmount(dir string) error
	// Bind mounts a file or directory, given as an open path, on the target.
	Bind(source, target string) error
	IsMountPoint(dir string) (bool, error)
	// Below lists what is mounted below a directory, outer mounts before inner ones.
	Below(dir string) ([]string, error)
}

// Manager makes the volumes of all pods. Calls for different pods may be concurrent,
// those for one pod may not.
type Manager struct {
	Root    string
	Sources Sources
	Mounter Mounter
	Clock   clock.PassiveClock
	// Facts for the downward API.
	HostIPs     func() []string // of now; nil: none
	Allocatable corev1.ResourceList
	// Warn tells people something about a pod; nil tells nobody.
	Warn func(pod *corev1.Pod, reason, message string)
	// Jitter is what a renewal of a certificate is delayed by; nil is up to five minutes, at random.
	Jitter func() time.Duration

	tokens      tokenCache
	credentials credentials
}

// PodDir is the directory of one pod.
func (m *Manager) PodDir(uid types.UID) string {
	return filepath.Join(m.Root, "pods", string(uid))
}

func (m *Manager) volumeDir(uid types.UID, plugin, name string) string {
	return filepath.Join(m.PodDir(uid), "volumes", "kubernetes.io~"+plugin, name)
}

// ContainerDir is where a container's termination messages lie.
func (m *Manager) ContainerDir(uid types.UID, container string) string {
	return filepath.Join(m.PodDir(uid), "containers", container)
}

// SetUp makes the pod's volumes, or brings them up to date.
func (m *Manager) SetUp(ctx context.Context, pod *corev1.Pod, podIPs []string) error {
	for _, dir := range []string{"volumes", "plugins", "containers"} {
		if err := os.MkdirAll(filepath.Join(m.PodDir(pod.UID), dir), 0o750); err != nil {
			return fmt.Errorf("make pod directory: %w", err)
		}
	}
	var failed []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if err := m.setUp(ctx, pod, v, podIPs); err != nil {
			failed = append(failed, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err))
		}
	}
	return errors.Join(failed...)
}

func (m *Manager) setUp(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, podIPs []string) error {
	switch {
	case v.ConfigMap != nil:
		files, err := m.configMapFiles(ctx, pod, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.DefaultMode, v.ConfigMap.Optional)
		if err != nil {
			return err
		}
		return m.write(pod, v, "configmap", false, files)
	case v.Secret != nil:
		files, err := m.secretFiles(ctx, pod, v.Secret.SecretName, v.Secret.Items, v.Secret.DefaultMode, v.Secret.Optional)
		if err != nil {
			return err
		}
		return m.write(pod, v, "secret", true, files)
	case v.DownwardAPI != nil:
		files, err := m.downwardFiles(pod, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode, podIPs)
		if err != nil {
			return err
		}
		return m.write(pod, v, "downward-api", false, files)
	case v.Projected != nil:
		files, err := m.projectedFiles(ctx, pod, v, podIPs)
		if err != nil {
			return err
		}
		return m.write(pod, v, "projected", true, files)
	case v.EmptyDir != nil:
		return m.emptyDir(pod, v)
	case v.HostPath != nil:
		return checkHostPath(v.HostPath)
	case v.NFS != nil:
		return m.nfs(ctx, pod, v.Name, v.NFS, v.NFS.ReadOnly, nil)
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		pv, err := m.claimed(ctx, pod, v)
		if err != nil {
			return err
		}
		return m.setUpClaimed(ctx, pod, v, pv)
	case v.Image != nil:
		return nil // the runtime mounts it
	}
	return fmt.Errorf("volume %s is of a kind that this node does not support", v.Name)
}

// Path is where the volume lies on the node.
func (m *Manager) Path(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (string, error) {
	switch {
	case v.ConfigMap != nil:
		return m.volumeDir(pod.UID, "configmap", v.Name), nil
	case v.Secret != nil:
		return m.volumeDir(pod.UID, "secret", v.Name), nil
	case v.DownwardAPI != nil:
		return m.volumeDir(pod.UID, "downward-api", v.Name), nil
	case v.Projected != nil:
		return m.volumeDir(pod.UID, "projected", v.Name), nil
	case v.EmptyDir != nil:
		return m.volumeDir(pod.UID, "empty-dir", v.Name), nil
	case v.HostPath != nil:
		return v.HostPath.Path, nil
	case v.NFS != nil:
		return m.volumeDir(pod.UID, "nfs", v.Name), nil
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		pv, err := m.claimed(ctx, pod, v)
		if err != nil {
			return "", err
		}
		return m.claimedPath(pod, pv)
	}
	return "", fmt.Errorf("volume %s has no path", v.Name)
}

// write puts files into a volume and gives them to the pod's group.
func (m *Manager) write(pod *corev1.Pod, v *corev1.Volume, plugin string, memory bool, files map[string]File) error {
	dir := m.volumeDir(pod.UID, plugin, v.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make volume directory: %w", err)
	}
	if memory {
		if err := m.tmpfs(dir, 0); err != nil {
			return err
		}
	}
	var group *int64
	if pod.Spec.SecurityContext != nil {
		group = pod.Spec.SecurityContext.FSGroup
	}
	_, err := Write(dir, files, group, m.Clock.Now())
	return err
}

func (m *Manager) tmpfs(dir string, size int64) error {
	mounted, err := m.Mounter.IsMountPoint(dir)
	if err != nil || mounted {
		return err
	}
	if err := m.Mounter.Tmpfs(dir, size); err != nil {
		return fmt.Errorf("mount memory at %s: %w", dir, err)
	}
	return nil
}

func (m *Manager) emptyDir(pod *corev1.Pod, v *corev1.Volume) error {
	dir := m.volumeDir(pod.UID, "empty-dir", v.Name)
	_, err := os.Stat(dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("make emptyDir: %w", err)
	}
	switch medium := v.EmptyDir.Medium; {
	case medium == corev1.StorageMediumMemory:
		var size int64
		if v.EmptyDir.SizeLimit != nil {
			size = v.EmptyDir.SizeLimit.Value()
		}
		if err := m.tmpfs(dir, size); err != nil {
			return err
		}
	case strings.HasPrefix(string(medium), string(corev1.StorageMediumHugePages)):
		if err := m.huge(pod, dir, medium); err != nil {
			return err
		}
	case medium != corev1.StorageMediumDefault:
		return fmt.Errorf("unknown storage medium %q", medium)
	}
	if !fresh {
		return nil
	}
	mode := fs.FileMode(0o777)
	if pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroup != nil {
		if err := os.Chown(dir, -1, int(*pod.Spec.SecurityContext.FSGroup)); err != nil {
			return fmt.Errorf("give emptyDir to group: %w", err)
		}
		mode |= fs.ModeSetgid
	}
	if err := os.Chmod(dir, mode); err != nil {
		return fmt.Errorf("open emptyDir: %w", err)
	}
	return nil
}

// checkHostPath does what a hostPath's type asks: be there, be of a sort, or be made.
func checkHostPath(h *corev1.HostPathVolumeSource) error {
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
			// The runtime binds what is there; like kubelet, a directory is made for it.
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

// TearDown unmounts and removes all of the pod's directory. Data that are not the
// node's own (hostPath) are never in it. Links that containers made are removed, not
// followed.
func (m *Manager) TearDown(uid types.UID) error {
	dir := m.PodDir(uid)
	mounts, err := m.Mounter.Below(dir)
	if err != nil {
		return fmt.Errorf("look for mounts of pod %s: %w", uid, err)
	}
	for _, path := range slices.Backward(mounts) {
		if err := m.Mounter.Unmount(path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	// Removing what lies under a mount that is still there would remove somebody's data.
	if mounts, err = m.Mounter.Below(dir); err != nil {
		return fmt.Errorf("look for mounts of pod %s: %w", uid, err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("still mounted below %s: %q", dir, mounts)
	}
	m.tokens.forget(uid)
	m.credentials.forget(uid)
	if err := safepath.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove directory of pod %s: %w", uid, err)
	}
	return nil
}
