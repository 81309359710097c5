// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// volume is a volume of a pod, with what its CSIDriver says.
type volume struct {
	spec      *volumes.Spec
	pod       *corev1.Pod
	name      string // of its directory
	dir       string // of the pod's volume
	driver    string
	handle    string
	ephemeral bool // inline
	block     bool
	readOnly  bool
	fsType    string
	options   []string // of mount
	mode      corev1.PersistentVolumeAccessMode
	context   map[string]string
	secrets   secrets

	class     *storagev1.CSIDriver // nil: there is none
	attach    bool                 // it has to be attached
	republish bool

	publishContext map[string]string // of the attachment
	able           able              // of the driver
	label          string            // for SELinux; empty: no mount option
}

// secrets are the references to Secrets, whose contents the driver gets.
type secrets struct{ stage, publish, expand *corev1.SecretReference }

// The steps of SetUp, in upstream's words.
const (
	stepSetUp  = "MountVolume.SetUp failed"
	stepDevice = "MountVolume.MountDevice failed"
	stepAttach = "MountVolume.WaitForAttach failed"
	stepGrow   = "MountVolume.Setup failed while expanding volume"
	stepOnline = "NodeExpandVolume.NodeExpandVolume failed"
	stepStage  = "MapVolume.SetUpDevice failed"
	stepMap    = "MapVolume.MapPodDevice failed"
	stepLink   = "MapVolume.MapBlockVolume failed"
)

// failedMap is the reason of events of block devices.
const failedMap = "FailedMapVolume"

// failed returns the failure of a step.
func (v *volume) failed(step string, err error) error {
	if own := (*volumes.StepError)(nil); errors.As(err, &own) {
		return err // it names its step
	}
	out := &volumes.StepError{Step: step, Err: named(v.driver, err)}
	if v.block {
		out.Reason = failedMap
		switch step {
		case stepAttach:
			out.Step = "MapVolume.WaitForAttach failed"
		case stepSetUp, stepDevice:
			out.Step = stepStage
		case stepGrow:
			out.Step = "MapVolume.MarkVolumeAsMounted failed while expanding volume"
		}
	}
	return out
}

// named adds the driver's name to an error that came from the driver, after upstream's words.
func named(driver string, err error) error {
	if s, ok := status.FromError(err); !ok || s.Code() == codes.OK || strings.Contains(err.Error(), driver) {
		return err
	}
	return fmt.Errorf("%w (CSI driver %s)", err, driver)
}

// volume reads what a pod's volume says.
func (p *caller) volume(ctx context.Context, spec *volumes.Spec) (*volume, error) {
	v := &volume{spec: spec, pod: spec.Pod, name: spec.Name(), dir: p.dir(spec), mode: corev1.ReadWriteOnce, readOnly: readOnly(spec)}
	if pv := spec.PersistentVolume; pv != nil {
		v.persistent(pv, spec)
	} else {
		v.inline(spec.Volume.CSI)
	}
	var err error
	if v.class, err = p.host.Drivers.Driver(ctx, v.driver); err != nil {
		return nil, fmt.Errorf("kubernetes.io/csi: get CSIDriver %s: %w", v.driver, err)
	}
	if err := v.checkMode(); err != nil {
		return nil, v.failed(stepSetUp, fmt.Errorf("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: %w", err))
	}
	v.attach = !v.ephemeral
	if c := v.class; c != nil {
		v.attach = v.attach && (c.Spec.AttachRequired == nil || *c.Spec.AttachRequired)
		v.republish = c.Spec.RequiresRepublish != nil && *c.Spec.RequiresRepublish
	}
	return v, nil
}

// persistent takes a persistent volume.
func (v *volume) persistent(pv *corev1.PersistentVolume, spec *volumes.Spec) {
	source := pv.Spec.CSI
	v.driver, v.handle, v.fsType, v.context = source.Driver, source.VolumeHandle, source.FSType, source.VolumeAttributes
	v.secrets = secrets{source.NodeStageSecretRef, source.NodePublishSecretRef, source.NodeExpandSecretRef}
	v.block, v.options = blockVolume(spec), spec.MountOptions()
	if len(pv.Spec.AccessModes) > 0 {
		v.mode = pv.Spec.AccessModes[0]
	}
}

// inline takes an inline volume of a pod.
func (v *volume) inline(source *corev1.CSIVolumeSource) {
	v.driver, v.ephemeral, v.context = source.Driver, true, source.VolumeAttributes
	v.handle = fmt.Sprintf("csi-%x", sha256.Sum256([]byte(string(v.pod.UID)+v.name)))
	if source.FSType != nil {
		v.fsType = *source.FSType
	}
	if ref := source.NodePublishSecretRef; ref != nil {
		v.secrets.publish = &corev1.SecretReference{Namespace: v.pod.Namespace, Name: ref.Name}
	}
}

// lifecycle returns the mode of the volume.
func (v *volume) lifecycle() storagev1.VolumeLifecycleMode {
	if v.ephemeral {
		return storagev1.VolumeLifecycleEphemeral
	}
	return storagev1.VolumeLifecyclePersistent
}

// checkMode checks that the driver supports such volumes. The messages are upstream's.
func (v *volume) checkMode() error {
	switch mode := v.lifecycle(); {
	case v.handle == "":
		return errors.New("missing volume id")
	case v.class == nil && v.ephemeral:
		return fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object)", mode, v.driver)
	case v.class != nil && !slices.Contains(v.class.Spec.VolumeLifecycleModes, mode):
		return fmt.Errorf("volume mode %q not supported by driver %s (only supports %q)", mode, v.driver, v.class.Spec.VolumeLifecycleModes)
	}
	return nil
}

// readOnly reports whether the volume is read-only for all containers.
func readOnly(spec *volumes.Spec) bool {
	if spec.PersistentVolume != nil {
		return spec.ReadOnly()
	}
	return spec.Volume.CSI != nil && spec.Volume.CSI.ReadOnly != nil && *spec.Volume.CSI.ReadOnly
}

// blockVolume reports whether the volume is a block device.
func blockVolume(spec *volumes.Spec) bool {
	pv := spec.PersistentVolume
	return pv != nil && pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
}
