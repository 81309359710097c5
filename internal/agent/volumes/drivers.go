// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Drivers are the CSI drivers of the node.
type Drivers interface {
	// Node returns the node service of a driver that has registered. Its calls have a time limit.
	Node(driver string) (csipb.NodeClient, error)
	// Driver returns the CSIDriver of the name; nil: there is none. The caller must not change it.
	Driver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	// WakeAtRegistration has a pod looked at when a driver registers.
	WakeAtRegistration(driver string, pod types.UID)
	// LookAgain has [DriverFollower.DriverRegistered] called in a moment: a device could not be unstaged.
	LookAgain(ctx context.Context, driver string)
}

// Attachments are the volumes that are attached to the node.
type Attachments interface {
	// Attached reports whether a volume is attached, and returns the metadata of its attachment. It notes that the node uses the volume. If
	// the volume is not attached, the pod is looked at again when that may have changed.
	Attached(ctx context.Context, driver, handle string, pod types.UID) (metadata map[string]string, attached bool, err error)
	// Exhausted reports whether the driver has refused the attachment because the node has as many volumes as it can have.
	Exhausted(ctx context.Context, driver, handle string) bool
	// Use notes that the node uses a volume.
	Use(driver, handle string)
	// Release notes that the node does not use a volume any more.
	Release(driver, handle string)
}

// Claims changes the status of claims.
type Claims interface {
	// PatchClaimStatus applies a strategic merge patch.
	PatchClaimStatus(ctx context.Context, namespace, name string, patch []byte) (*corev1.PersistentVolumeClaim, error)
}

// Operations notes operations of storage, for the metrics.
type Operations interface {
	// Operation notes one operation, such as volume_mount, of a plug-in.
	Operation(plugin, operation string, took time.Duration, err error)
}

// DriverFollower is implemented by a plug-in that completes work when a driver registers.
type DriverFollower interface {
	// Restore notes which volumes an earlier process of the node has set up. It is called before the node tells the API server what it uses.
	Restore() error
	// DriverRegistered is called after a driver has registered, and again if it returns an error.
	DriverRegistered(ctx context.Context, driver string) error
}

// Restore notes which volumes an earlier process of the node has set up.
func (m *Manager) Restore() error {
	var failed []error
	for _, plugin := range m.plugins {
		if f, ok := plugin.(DriverFollower); ok {
			failed = append(failed, f.Restore())
		}
	}
	return errors.Join(failed...)
}

// DriverRegistered tells the plug-ins of a driver that has registered.
func (m *Manager) DriverRegistered(ctx context.Context, driver string) error {
	var failed []error
	for _, plugin := range m.plugins {
		if f, ok := plugin.(DriverFollower); ok {
			failed = append(failed, f.DriverRegistered(ctx, driver))
		}
	}
	return errors.Join(failed...)
}

// BlockMapper is implemented by a plug-in with volumes that are block devices.
type BlockMapper interface {
	// DevicePath returns the link to the device that the pod has; empty: the volume is no block device.
	DevicePath(spec *Spec) string
	// TearDownDevice removes what SetUp made of a block device.
	TearDownDevice(ctx context.Context, volume Reconstructed) error
}

// UsageProvider is implemented by a plug-in that measures its volumes itself, those of MeasureDriver.
type UsageProvider interface {
	// MeasureVolume returns the usage of a volume.
	MeasureVolume(ctx context.Context, spec *Spec) (Usage, error)
}

// Usage is the usage of a volume. What is not known is zero.
type Usage struct {
	Bytes, Free, Used           uint64
	Files, FilesFree, FilesUsed uint64
}

// StepError is the failure of one step of SetUp.
type StepError struct {
	Step   string // in upstream's words, such as "MountVolume.MountDevice failed"; empty: the error is the whole text
	Reason string // of the event; empty: FailedMount
	Err    error
}

// Error returns the error's text.
func (e *StepError) Error() string { return e.Err.Error() }

// Unwrap returns the error.
func (e *StepError) Unwrap() error { return e.Err }

// EventReason returns the reason of the event, or nothing.
func (e *StepError) EventReason() string { return e.Reason }
