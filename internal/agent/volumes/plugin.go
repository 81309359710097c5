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

// Plugin sets up the volumes of one type of source, such as configMap or nfs. A plug-in is one package below this one, a call of
// volumetest.Run in that package's tests, and one line in internal/builtin/volumes.go.
//
// # Promises
//
// volumetest.Run checks each of them.
//
//   - Level-driven: the manager calls SetUp before the pod's first container, and again whenever it syncs the pod. SetUp makes the volume
//     match the Spec, and does nothing if it does already. It keeps what the pod's containers wrote.
//   - Restartable: the agent may die (kill -9, power loss) between any two steps of SetUp and TearDown. The next call, of a new
//     process without memory, completes the work. A plug-in reads its state from the disk: from Host.VolumeDir, from the kernel's list of
//     mounts, or from a file that it wrote before the step that the file describes.
//   - Complete: TearDown leaves no mount and no file of the volume. It needs no Spec, since the pod and the API server may be gone. A
//     second TearDown does nothing. It never removes what it could not unmount.
//   - Contained: in a volume that they can write to, containers may replace anything by symbolic links, FIFOs and devices. A plug-in
//     neither follows nor opens these; os.Root and package safepath do not either. If the node rewrites a volume while containers run,
//     the volume is read-only for all of them (Attributes.ReadOnly).
//   - Grouped: the files of a volume that belongs to the pod belong to the pod's fsGroup (Spec.FSGroup).
//
// The manager calls a plug-in concurrently for several pods, but never for one pod.
//
// # Optional interfaces
//
// A plug-in may implement [Renewer] or [RuntimeMounter] as well. Only the manager tests for them.
//
// A plug-in of volumes that may be block devices implements [BlockMapper]; one whose driver measures, [UsageProvider]; one that waits for
// drivers, [DriverFollower].
//
// SetUp may return a *containermanager.Hold, with which the pod waits without an event, and a [StepError] that names the step which failed.
type Plugin interface {
	// Name returns upstream's name of the plug-in, kubernetes.io/TYPE. The directories of its volumes have this name.
	Name() string
	// CanSupport reports whether the plug-in supports the volume. At most one plug-in of the list does.
	CanSupport(spec *Spec) bool
	// SetUp sets up the volume, or updates it.
	SetUp(ctx context.Context, spec *Spec) error
	// TearDown removes all or a part of what SetUp made.
	TearDown(ctx context.Context, volume Reconstructed) error
	// Path returns the path of the volume on the node; empty: it has no path.
	Path(spec *Spec) string
	// Attributes returns the facts that the manager needs to use the volume.
	Attributes(spec *Spec) Attributes
}

// Renewer is implemented by a plug-in with volumes that must be set up again at a time that no event announces, such as the expiry of a
// credential, and that keeps state in memory for that.
type Renewer interface {
	// NextRenewal returns when the first of the pod's volumes must be set up again; zero: never.
	NextRenewal(pod types.UID) time.Time
	// ForgetPod drops the state of a pod that is gone.
	ForgetPod(pod types.UID)
}

// RuntimeMounter is implemented by a plug-in whose volumes the container runtime makes and mounts.
type RuntimeMounter interface {
	// RuntimeMount returns the runtime's mount of the volume. The manager adds the path in the container, whether it is read-only, and the
	// mount propagation. The image is nil until the runtime has it.
	RuntimeMount(spec *Spec, image *runtimeapi.ImageSpec, subPath string) (*runtimeapi.Mount, error)
}

// Factory makes a plug-in of a node. The plug-in keeps the Host, whose fields are set before the first volume is set up.
type Factory func(host *Host) Plugin

// Spec is one volume of one pod, with the objects that its definition refers to.
type Spec struct {
	Pod    *corev1.Pod
	PodIPs []string
	// Volume is one of the pod's volumes.
	Volume *corev1.Volume
	// Claim and PersistentVolume are set if Volume is a claim or ephemeral, and otherwise nil.
	Claim            *corev1.PersistentVolumeClaim
	PersistentVolume *corev1.PersistentVolume
}

// Name returns the name of the volume's directory: the name of the persistent volume or, without one, of the volume in the pod.
func (s *Spec) Name() string {
	if s.PersistentVolume != nil {
		return s.PersistentVolume.Name
	}
	return s.Volume.Name
}

// ReadOnly reports whether the pod's claim is read-only.
func (s *Spec) ReadOnly() bool {
	return s.Volume.PersistentVolumeClaim != nil && s.Volume.PersistentVolumeClaim.ReadOnly
}

// FSGroup returns the pod's fsGroup, or nil.
func (s *Spec) FSGroup() *int64 {
	if s.Pod.Spec.SecurityContext == nil {
		return nil
	}
	return s.Pod.Spec.SecurityContext.FSGroup
}

// MountOptions returns the mount options of the persistent volume. The old annotation takes precedence, as with kubelet.
func (s *Spec) MountOptions() []string {
	if s.PersistentVolume == nil {
		return nil
	}
	if text, ok := s.PersistentVolume.Annotations[corev1.MountOptionAnnotation]; ok {
		return strings.Split(text, ",")
	}
	return s.PersistentVolume.Spec.MountOptions
}

// Reconstructed is a volume that the manager found on the disk.
type Reconstructed struct {
	PodUID types.UID
	Name   string // of its directory: Spec.Name
	Dir    string
}

// Attributes are the facts of a volume that the manager needs to use it.
type Attributes struct {
	// ReadOnly forbids all containers to write to the volume, whatever their mounts say.
	ReadOnly bool
	// SubPathMode is the mode of the directories that the manager makes for subpaths; zero: 0750.
	SubPathMode fs.FileMode
	// Measure is the way to measure the volume's usage.
	Measure Measure
}

// Measure is a way to measure the usage of a volume.
type Measure int

const (
	// NotMeasured: the volume's contents do not belong to the pod.
	NotMeasured Measure = iota
	// MeasureFiles: the volume shares a file system with others, and the node counts its files.
	MeasureFiles
	// MeasureFileSystem: the volume has its own file system, whose usage is the volume's.
	MeasureFileSystem
	// MeasureDriver: the plug-in asks the volume's driver.
	MeasureDriver
)
