// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"io/fs"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Plugin makes the volumes of one type of source, such as configMap or nfs. It is one package below this one, a call of
// volumetest.Run in that package's tests, and one line in internal/builtin/volumes.go.
//
// # Promises
//
// volumetest.Run checks each of them.
//
//   - Level-driven: the manager calls SetUp before the pod's first container, and again whenever the pod is synced. SetUp makes the
//     volume what the Spec asks for, and does nothing if it is that already. It keeps what the pod's containers wrote.
//   - Restartable: the agent may die (kill -9, power loss) between any two steps of SetUp and TearDown. The next call, of a new
//     process that remembers nothing, completes the work. What a plug-in has to know again it reads from the disk: below
//     Host.VolumeDir, from the kernel's list of mounts, or from a file that it wrote before the step that the file describes.
//   - Complete: TearDown leaves nothing mounted and nothing on disk of the volume. It needs no Spec, since the pod and the API
//     server may be gone. A second TearDown does nothing. It never removes what it could not unmount.
//   - Contained: containers may replace anything in a volume that they can write to by symbolic links, FIFOs and devices. A plug-in
//     follows and opens none of them; os.Root and package safepath do not either. A volume that the node rewrites
//     while containers run is read-only for all of them (Attributes.ReadOnly).
//   - Grouped: the files of a volume that belongs to the pod are the group's that the pod names (Spec.FSGroup).
//
// The manager calls a plug-in concurrently for several pods, but never for one pod.
//
// # Optional interfaces
//
// A plug-in that needs more implements [Renewer] or [RuntimeMounter]. The manager alone looks for them.
//
// # How CSI fits
//
// CSI is a package csi, whose plug-in is one more line of the list and whose second half is a handler of the plug-in manager
// (internal/agent/plugins): it registers a driver's socket under the driver's name. Its steps map to this interface as follows.
//
//   - CanSupport: Spec.Volume.CSI (an inline volume) or Spec.PersistentVolume.Spec.CSI. The Spec has the volume and the claim,
//     so that nothing else has to be asked of the API but the attachment and the CSIDriver, which Sources then provide.
//   - SetUp: wait for the VolumeAttachment; stage the device once a node, below ROOT/plugins/kubernetes.io/csi, under a lock that
//     the plug-in holds for each device; write vol_data.json (driver, handle, attachment, whether it is inline) into
//     Host.VolumeDir before NodePublishVolume; publish to Path, which is the directory mount in it. Both calls of the driver are
//     idempotent, which is what Restartable asks for. SELinux' mount options are part of the staging request, which has the pod's
//     context from Spec.Pod. The CSIDriver's fsGroupPolicy decides whether the driver gets Spec.FSGroup
//     (VOLUME_MOUNT_GROUP), or the plug-in changes the files' group, or neither.
//   - TearDown: read vol_data.json, unpublish, and unstage when no other pod's directory names the device. A device whose last pod
//     went while the agent was down is found in the same way, since the manager tears down every directory that no pod has.
//   - requiresRepublish: Renewer, which has the manager call SetUp by the clock.
//   - Block volumes: one more optional interface, BlockMapper, whose MapDevice makes the links below volumeDevices and whose path
//     Mounts hands to the runtime as a device. CanSupport looks at the volume's mode.
//   - Usage: one more value of Measure, for which the plug-in asks the driver.
type Plugin interface {
	// Name is upstream's name of the plug-in, kubernetes.io/TYPE. Its volumes lie in directories that are named for it.
	Name() string
	// CanSupport reports whether the plug-in supports the volume. At most one plug-in of the list does.
	CanSupport(spec *Spec) bool
	// SetUp makes the volume, or brings it up to date.
	SetUp(ctx context.Context, spec *Spec) error
	// TearDown takes away what SetUp made, or the part of it that there is.
	TearDown(ctx context.Context, volume Reconstructed) error
	// Path is where the volume lies on the node; empty for one that has no path.
	Path(spec *Spec) string
	// Attributes are what the manager has to know to use the volume.
	Attributes(spec *Spec) Attributes
}

// Renewer is a plug-in whose volumes have to be set up again at a time that nothing else announces, such as the expiry of a
// credential, and which keeps for that something in memory.
type Renewer interface {
	// NextRenewal is when the first of the pod's volumes has to be set up again; zero: by no clock.
	NextRenewal(pod types.UID) time.Time
	// ForgetPod drops what is kept of a pod that is gone.
	ForgetPod(pod types.UID)
}

// RuntimeMounter is a plug-in whose volumes the container runtime makes and mounts itself.
type RuntimeMounter interface {
	// RuntimeMount is what the runtime mounts of the volume. The manager adds the path in the container, whether it is read-only
	// and how mounts propagate. The image is nil until the runtime has it.
	RuntimeMount(spec *Spec, image *runtimeapi.ImageSpec, subPath string) (*runtimeapi.Mount, error)
}

// Factory makes a plug-in of a node. It keeps the Host, whose fields are set when the first volume is set up.
type Factory func(host *Host) Plugin

// Spec is one volume of one pod, with all that its definition leads to.
type Spec struct {
	Pod    *corev1.Pod
	PodIPs []string
	// Volume is one of the pod's volumes.
	Volume *corev1.Volume
	// Claim and PersistentVolume are what Volume refers to if it is a claim or ephemeral, and otherwise nil.
	Claim            *corev1.PersistentVolumeClaim
	PersistentVolume *corev1.PersistentVolume
}

// Name is the name of the volume's directory: the persistent volume's or, without one, the volume's in the pod.
func (s *Spec) Name() string {
	if s.PersistentVolume != nil {
		return s.PersistentVolume.Name
	}
	return s.Volume.Name
}

// ReadOnly says whether the pod claims the volume to read it alone.
func (s *Spec) ReadOnly() bool {
	return s.Volume.PersistentVolumeClaim != nil && s.Volume.PersistentVolumeClaim.ReadOnly
}

// FSGroup is the group that the pod's volumes belong to; nil: none is named.
func (s *Spec) FSGroup() *int64 {
	if s.Pod.Spec.SecurityContext == nil {
		return nil
	}
	return s.Pod.Spec.SecurityContext.FSGroup
}

// MountOptions are the persistent volume's. The old annotation wins, as with kubelet.
func (s *Spec) MountOptions() []string {
	if s.PersistentVolume == nil {
		return nil
	}
	if text, ok := s.PersistentVolume.Annotations[corev1.MountOptionAnnotation]; ok {
		return strings.Split(text, ",")
	}
	return s.PersistentVolume.Spec.MountOptions
}

// Reconstructed is a volume that was found on the disk.
type Reconstructed struct {
	PodUID types.UID
	Name   string // of its directory: Spec.Name
	Dir    string
}

// Attributes are what the manager has to know of a volume to use it.
type Attributes struct {
	// ReadOnly: no container may write to the volume, whatever its mount says.
	ReadOnly bool
	// SubPathMode is the mode of directories that the manager makes for subPaths; zero: 0750.
	SubPathMode fs.FileMode
	// Measure is how the volume's usage is found out.
	Measure Measure
}

// Measure is a way to find out how much of a volume is used.
type Measure int

const (
	// NotMeasured: the volume's contents are not the pod's.
	NotMeasured Measure = iota
	// MeasureFiles: the volume shares a file system with others, and its files are counted.
	MeasureFiles
	// MeasureFileSystem: the volume has a file system of its own, which knows its usage.
	MeasureFileSystem
)
