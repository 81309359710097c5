// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// spot is a volume on a node, during one sync.
type spot struct {
	*attachment
	volume, node string
	disk         *disk                       // nil: the PersistentVolume is gone
	pods         []*corev1.Pod               // that use the volume here, by namespace and name
	found        *storagev1.VolumeAttachment // nil: there is none
}

// deleting reports whether the VolumeAttachment is on its way out, even if the cache does not show it yet.
func (s *spot) deleting() bool {
	return s.found != nil && (s.found.DeletionTimestamp != nil || s.deleted != "" && s.found.UID == s.deleted)
}

// attached reports whether the volume is attached, and stays so.
func (s *spot) attached() bool { return s.found != nil && s.found.Status.Attached && !s.deleting() }

// attachError returns why the last try to attach the volume failed.
func (s *spot) attachError() *storagev1.VolumeError {
	if s.found == nil {
		return nil
	}
	return s.found.Status.AttachError
}

// busy reports whether the attacher works on the volume here: until it reports a failure or success, but at most answerWait.
func (s *spot) busy(now time.Time) bool {
	switch {
	case s.found == nil:
		return s.created != "" // the server may have created it
	case s.deleting():
		return s.found.Status.DetachError == nil && now.Before(s.detaching.Add(answerWait))
	default:
		return !s.found.Status.Attached && s.attachError() == nil && now.Before(s.attaching.Add(answerWait))
	}
}

// syncVolume attaches a volume to the nodes whose pods use it, and detaches it from the others. It detaches first.
func (c *controller) syncVolume(ctx context.Context, volume string) error {
	spots, disk, err := c.survey(ctx, volume)
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range spots {
		if len(s.pods) == 0 {
			errs = append(errs, c.detach(ctx, s))
		}
	}
	for _, s := range spots {
		if len(s.pods) > 0 && disk != nil {
			errs = append(errs, c.attach(ctx, s, spots))
		}
	}
	return errors.Join(errs...)
}

// survey returns a volume on all nodes that it is or shall be attached to, by node.
func (c *controller) survey(ctx context.Context, volume string) ([]*spot, *disk, error) {
	disk, wanted, err := c.catalog.demand(volume)
	if err != nil {
		return nil, nil, err
	}
	driver, _, _ := parseName(volume)
	attachable, err := c.catalog.attachable(driver)
	if err != nil {
		return nil, nil, err
	}
	if err := c.discover(volume); err != nil {
		return nil, nil, err
	}
	tracked := c.registry.attachmentsOf(volume)
	for node := range wanted {
		if tracked[node] != nil || !attachable {
			continue
		}
		if n, err := c.nodes.Get(node); err == nil && managed(n) {
			if tracked == nil {
				tracked = map[string]*attachment{}
			}
			tracked[node] = c.registry.track(volume, node)
		}
	}
	var spots []*spot
	for _, node := range slices.Sorted(maps.Keys(tracked)) {
		s := &spot{attachment: tracked[node], volume: volume, node: node, disk: disk}
		if attachable {
			s.pods = c.catalog.users(s.attachment, node, wanted[node])
		}
		if err := c.look(ctx, s); err != nil {
			return nil, nil, err
		}
		pods := make(map[types.UID]podName, len(s.pods))
		for _, pod := range s.pods {
			pods[pod.UID] = podName{pod.Namespace, pod.Name}
		}
		c.registry.use(volume, s.attachment, pods)
		spots = append(spots, s)
	}
	return spots, disk, nil
}

// discover tracks the VolumeAttachments that an earlier incarnation created while their PersistentVolume was not in the cache.
func (c *controller) discover(volume string) error {
	volumes, err := c.catalog.volumes.ByIndex(byName, volume)
	if err != nil {
		return fmt.Errorf("find volumes: %w", err)
	}
	for _, obj := range volumes {
		pv, ok := obj.(*corev1.PersistentVolume)
		if !ok {
			continue
		}
		found, err := c.attachments.ByIndex(bySpec, pv.Name)
		if err != nil {
			return fmt.Errorf("find attachments: %w", err)
		}
		for _, obj := range found {
			if a, ok := obj.(*storagev1.VolumeAttachment); ok && a.Name == attachmentName(volume, a.Spec.NodeName) {
				c.registry.track(volume, a.Spec.NodeName)
			}
		}
	}
	return nil
}

// look finds the VolumeAttachment. It asks the server while the cache does not show one that this controller created.
func (c *controller) look(ctx context.Context, s *spot) error {
	obj, ok, err := c.attachments.GetByKey(s.name)
	if err != nil {
		return fmt.Errorf("get attachment: %w", err)
	}
	if found, is := obj.(*storagev1.VolumeAttachment); ok && is {
		s.found, s.created = found, ""
	} else if s.created != "" && s.created != s.deleted {
		found, err := c.client.StorageV1().VolumeAttachments().Get(ctx, s.name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			s.created = ""
		case err != nil:
			return fmt.Errorf("get attachment: %w", err)
		default:
			s.found = found
		}
	}
	switch { // an earlier incarnation may have begun
	case s.deleting() && s.detaching.IsZero():
		s.detaching = c.clock.Now()
	case s.found != nil && !s.deleting() && !s.found.Status.Attached && s.attaching.IsZero():
		s.attaching = c.clock.Now()
	}
	return nil
}

// attach attaches a volume to a node, as far as other nodes allow it.
func (c *controller) attach(ctx context.Context, s *spot, all []*spot) error {
	now := c.clock.Now()
	s.idle = time.Time{}
	if s.attached() {
		if !s.confirmed && s.disk.exclusive() {
			// A failed try may have succeeded after all, and another node may have got the volume meanwhile.
			if alone, err := c.alone(ctx, s, all, now); err != nil || !alone {
				return err
			}
		}
		if c.ledger.state(s.node, s.volume) != listed {
			c.ledger.list(s.node, s.volume)
			c.nodeQueue.Add(s.node)
		}
		if !s.confirmed {
			s.confirmed = true
			c.meters.attached(s, now, nil)
			c.events.tell(s, corev1.EventTypeNormal, "SuccessfulAttachVolume", "AttachVolume.Attach succeeded", "")
		}
		s.attaching, s.retry, s.conflict = time.Time{}, backoff{}, false
		return nil
	}
	if s.confirmed {
		if c.settings.noSync && !s.deleting() {
			return nil
		}
		s.confirmed = false // another client deleted the VolumeAttachment, or changed its status
		c.ledger.set(s.node, s.volume, unlisted)
		c.nodeQueue.Add(s.node)
	}
	if s.deleting() {
		if s.busy(now) {
			c.volumeQueue.AddAfter(s.volume, s.detaching.Add(answerWait).Sub(now))
		} else {
			c.failed(s, now, "volume attachment is being deleted", "deleted "+string(s.found.UID))
		}
		return nil
	}
	if s.found == nil && s.deleted != "" {
		c.detached(s, now)
	}
	if s.disk.exclusive() {
		if alone, err := c.alone(ctx, s, all, now); err != nil || !alone {
			return err
		}
	}
	if s.found == nil {
		return c.create(ctx, s, now)
	}
	switch failure := s.attachError(); {
	case failure != nil:
		c.failed(s, now, failure.Message, failure.Time.String()+failure.Message)
	case s.busy(now):
		c.volumeQueue.AddAfter(s.volume, s.attaching.Add(answerWait).Sub(now))
	default:
		c.failed(s, now, fmt.Sprintf("timed out waiting for external-attacher of %s CSI driver to attach volume %s", s.disk.driver,
			s.disk.handle), "timeout "+now.String())
		s.attaching = now
		c.volumeQueue.AddAfter(s.volume, answerWait)
	}
	return nil
}

// alone reports whether no other node has a volume that is not shared, nor is about to get it or to lose it. If the volume is attached here
// too, another node has it only if its status lists the volume.
func (c *controller) alone(ctx context.Context, s *spot, all []*spot, now time.Time) (bool, error) {
	var others []*spot
	busy := false
	for _, other := range all {
		if other == s {
			continue
		}
		if err := c.lookAgain(ctx, other, now); err != nil {
			return false, err
		}
		state := c.ledger.state(other.node, other.volume)
		if other.attached() && (!s.attached() || other.confirmed || state != unlisted) {
			if state == unlisted || state == listed {
				others = append(others, other)
			} else {
				busy = true // it is about to be detached
			}
		}
		if other.busy(now) {
			busy = true
			since := other.attaching
			if other.deleting() {
				since = other.detaching
			}
			c.volumeQueue.AddAfter(s.volume, since.Add(answerWait).Sub(now))
		}
	}
	if len(others) > 0 && !s.conflict {
		s.conflict = true
		c.events.tellConflict(s, others)
	}
	return len(others) == 0 && !busy, nil
}

// lookAgain asks the server for a VolumeAttachment that failed: the attacher may have tried again since.
func (c *controller) lookAgain(ctx context.Context, s *spot, now time.Time) error {
	if s.found == nil || s.deleting() || s.attached() || s.busy(now) {
		return nil
	}
	found, err := c.client.StorageV1().VolumeAttachments().Get(ctx, s.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil // its event enqueues the volume
	case err != nil:
		return fmt.Errorf("get attachment: %w", err)
	}
	s.found = found
	return nil
}

// perhaps stands for the UID of a VolumeAttachment that exists or not: the server's answer was an error.
const perhaps types.UID = "perhaps"

// create creates the VolumeAttachment.
func (c *controller) create(ctx context.Context, s *spot, now time.Time) error {
	if wait := s.retry.next.Sub(now); wait > 0 {
		c.volumeQueue.AddAfter(s.volume, wait)
		return nil
	}
	if s.attaching.IsZero() {
		s.attaching = now
	}
	source := storagev1.VolumeAttachmentSource{PersistentVolumeName: &s.disk.pv.Name}
	if s.disk.inline {
		source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &s.disk.pv.Spec}
	}
	made, err := c.client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec:       storagev1.VolumeAttachmentSpec{NodeName: s.node, Attacher: s.disk.driver, Source: source},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the cache is behind
		made, err = c.client.StorageV1().VolumeAttachments().Get(ctx, s.name, metav1.GetOptions{})
	}
	if err != nil {
		// The first words are upstream's.
		c.failed(s, now, "kubernetes.io/csi: attacher.Attach failed: "+err.Error(), "create "+err.Error()+now.String())
		s.attaching, s.created = time.Time{}, perhaps
		c.volumeQueue.AddAfter(s.volume, s.retry.failed(now))
		return nil
	}
	s.created, s.found = made.UID, made
	c.volumeQueue.AddAfter(s.volume, answerWait)
	return nil
}

// failed tells the pods why a volume is not attached, each one once for a failure.
func (c *controller) failed(s *spot, now time.Time, why, identity string) {
	var pods []*corev1.Pod
	for _, pod := range s.pods {
		if s.told[pod.UID] != identity {
			s.told[pod.UID] = identity
			pods = append(pods, pod)
		}
	}
	if len(pods) == 0 {
		return
	}
	c.meters.attached(s, now, errors.New(why))
	told := *s
	told.pods = pods
	c.events.tell(&told, corev1.EventTypeWarning, "FailedAttachVolume", "AttachVolume.Attach failed", ": "+why)
}
