// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Attachments know which volumes the node uses, and which the attach-detach controller has attached. The node says that it uses a volume
// (volumesInUse) before it looks at whether it is attached: the controller detaches no volume that is in use.
//
// A node may not watch VolumeAttachments. It watches its own Node, and reads an attachment once the Node says that the volume is attached.
type Attachments struct {
	o       Options
	refresh func(ctx context.Context, driver string) error // reads a driver's limit of volumes anew

	mu      sync.Mutex
	used    map[corev1.UniqueVolumeName]bool
	left    map[corev1.UniqueVolumeName]bool // released; the newest Node may be older
	node    *corev1.Node                     // the newest
	waiting map[types.UID]bool
}

func newAttachments(o Options) *Attachments {
	return &Attachments{
		o: o, used: map[corev1.UniqueVolumeName]bool{}, left: map[corev1.UniqueVolumeName]bool{}, waiting: map[types.UID]bool{},
	}
}

// UniqueName returns the name of a volume in the Node's status.
func UniqueName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName("kubernetes.io/csi/" + driver + "^" + handle)
}

// AttachmentName returns the name of a VolumeAttachment.
func AttachmentName(driver, handle, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// InUse returns the volumes that the node uses, in their order, for the Node's status, whose former write has ended. It implements
// nodestatus.Volumes.
func (a *Attachments) InUse() []corev1.UniqueVolumeName {
	a.mu.Lock()
	var pods []types.UID
	for name := range a.left {
		if a.used[name] { // it is used again, and either no write has left it out, or the newest Node would show that
			delete(a.left, name)
			pods = slices.Collect(maps.Keys(a.waiting))
		}
	}
	if len(pods) > 0 {
		clear(a.waiting)
	}
	used := slices.Sorted(maps.Keys(a.used))
	a.mu.Unlock()
	if len(pods) > 0 {
		a.o.Pods.WakeEach(pods)
	}
	return used
}

// Saw notes the newest Node, and wakes the pods that wait for attachments if these may have changed. It implements nodestatus.Volumes.
func (a *Attachments) Saw(node *corev1.Node) {
	a.mu.Lock()
	var pods []types.UID
	if len(a.waiting) > 0 && (a.node == nil || !slices.Equal(a.node.Status.VolumesAttached, node.Status.VolumesAttached) ||
		!slices.Equal(a.node.Status.VolumesInUse, node.Status.VolumesInUse)) {
		pods = slices.Collect(maps.Keys(a.waiting))
		clear(a.waiting)
	}
	a.node = node
	for name := range a.left {
		if !slices.Contains(node.Status.VolumesInUse, name) {
			delete(a.left, name)
		}
	}
	a.mu.Unlock()
	if len(pods) > 0 {
		a.o.Pods.WakeEach(pods)
	}
}

// wakeWaiting wakes the pods that wait for attachments: a CSIDriver has changed, which may say that its volumes are not attached.
func (a *Attachments) wakeWaiting() {
	a.mu.Lock()
	pods := slices.Collect(maps.Keys(a.waiting))
	clear(a.waiting)
	a.mu.Unlock()
	if len(pods) > 0 {
		a.o.Pods.WakeEach(pods)
	}
}

// Use notes that the node uses a volume that another process of it has set up.
func (a *Attachments) Use(driver, handle string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used[UniqueName(driver, handle)] = true
}

// Release notes that the node does not use a volume any more: it is neither published nor staged.
func (a *Attachments) Release(driver, handle string) {
	name := UniqueName(driver, handle)
	a.mu.Lock()
	was := a.used[name]
	delete(a.used, name)
	if was {
		a.left[name] = true
	}
	a.mu.Unlock()
	if was {
		a.o.Resync()
	}
}

// Attached reports whether a volume is attached to the node, and returns the attachment's metadata. If it is not, the pod is woken when
// that may have changed. The messages are upstream's.
func (a *Attachments) Attached(ctx context.Context, driver, handle string, pod types.UID) (map[string]string, bool, error) {
	name := UniqueName(driver, handle)
	a.mu.Lock()
	first := !a.used[name]
	a.used[name] = true
	node := a.node
	told := node != nil && !a.left[name] && slices.Contains(node.Status.VolumesInUse, name) &&
		slices.ContainsFunc(node.Status.VolumesAttached, func(v corev1.AttachedVolume) bool { return v.Name == name })
	if !told {
		a.waiting[pod] = true
	}
	a.mu.Unlock()
	if first {
		a.o.Resync()
	}
	if !told {
		return nil, false, nil
	}
	id := AttachmentName(driver, handle, a.o.NodeName)
	found, err := a.o.Client.StorageV1().VolumeAttachments().Get(ctx, id, metav1.GetOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("volume %v has GET error for volume attachment %v: %w", handle, id, err)
	}
	if err := attachError(found); err != nil {
		return nil, false, err
	}
	if !found.Status.Attached {
		return nil, false, fmt.Errorf("volume %v is not attached for volume attachment %v", handle, id)
	}
	return found.Status.AttachmentMetadata, true, nil
}

// Exhausted reports whether the driver has refused to attach a volume because the node has as many as it can have. Then it also reads the
// driver's limit anew, for the scheduler.
func (a *Attachments) Exhausted(ctx context.Context, driver, handle string) bool {
	found, err := a.o.Client.StorageV1().VolumeAttachments().Get(ctx, AttachmentName(driver, handle, a.o.NodeName), metav1.GetOptions{})
	if err != nil {
		return false // the pod waits on
	}
	failed := found.Status.AttachError
	if failed == nil || failed.ErrorCode == nil || codes.Code(*failed.ErrorCode) != codes.ResourceExhausted {
		return false
	}
	if err := a.refresh(ctx, driver); err != nil {
		a.o.Logger.Warn("Could not read a CSI driver's limit of volumes", "driver", driver, "err", err)
	}
	return true
}

// attachError returns why a volume will not be attached.
func attachError(a *storagev1.VolumeAttachment) error {
	switch {
	case a.DeletionTimestamp != nil:
		return errors.New("volume attachment is being deleted")
	case !a.Status.Attached && a.Status.AttachError != nil:
		return errors.New(a.Status.AttachError.Message)
	}
	return nil
}
