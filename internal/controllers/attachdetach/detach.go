// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// host is what the controller sees of a node whose volume no pod uses.
type host struct {
	mounted      bool // the node lists the volume in volumesInUse
	ready        bool
	outOfService bool
}

// verdict is the decision whether to detach a volume from a node.
type verdict int

const (
	wait      verdict = iota // the node has it mounted
	ask                      // remove it from the node's status, and look again whether the node has it mounted
	byTimeout                // do not ask: the node had its time
	byTaint                  // do not ask: an administrator has declared the node out of service
)

// judge decides whether a volume that no pod has used for some time may be detached from a node.
func judge(h host, idle time.Duration, noForce bool) verdict {
	expired := idle > unmountWait && !noForce
	switch {
	case h.mounted && !h.outOfService && (!expired || h.ready):
		return wait
	case expired:
		return byTimeout
	case h.outOfService:
		return byTaint
	}
	return ask
}

// host returns what the caches show of a node.
func (c *controller) host(s *spot) (host, error) {
	node, err := c.nodes.Get(s.node)
	if apierrors.IsNotFound(err) {
		return host{mounted: c.ledger.usedLast(s.node, s.volume)}, nil
	} else if err != nil {
		return host{}, fmt.Errorf("get node: %w", err)
	}
	return host{
		mounted: slices.Contains(node.Status.VolumesInUse, corev1.UniqueVolumeName(s.volume)),
		ready:   ready(node), outOfService: outOfService(node),
	}, nil
}

// detach detaches a volume from a node whose pods do not use it, as far as the node allows it.
func (c *controller) detach(ctx context.Context, s *spot) error {
	now := c.clock.Now()
	s.conflict = false
	switch {
	case s.deleting():
		if failure := s.found.Status.DetachError; failure != nil {
			if identity := failure.Time.String() + failure.Message; s.told[""] != identity {
				s.told[""] = identity
				c.meters.detached(s, now, errors.New(failure.Message))
			}
		}
		return nil
	case s.found == nil && (s.deleted != "" || c.ledger.state(s.node, s.volume) == unlisted):
		c.detached(s, now)
		c.registry.forget(s.volume, s.node)
		if len(c.registry.onNode(s.node)) == 0 {
			c.ledger.returned(s.node)
		}
		return nil
	}
	if s.idle.IsZero() {
		s.idle = now
	}
	h, err := c.host(s)
	if err != nil {
		return err
	}
	how := judge(h, now.Sub(s.idle), c.settings.noForce)
	if how == wait {
		if left := s.idle.Add(unmountWait).Sub(now); left >= 0 && !c.settings.noForce {
			c.volumeQueue.AddAfter(s.volume, left+time.Millisecond)
		}
		return nil // an event of the node enqueues the volume
	}
	s.confirmed = false
	switch state := c.ledger.state(s.node, s.volume); {
	case state == released:
		return c.remove(ctx, s, now, how)
	case how == ask && state != withdrawn:
		c.ledger.set(s.node, s.volume, withdrawn)
	case how != ask && state != forced:
		c.ledger.set(s.node, s.volume, forced)
	}
	c.nodeQueue.Add(s.node)
	return nil
}

// remove deletes the VolumeAttachment.
func (c *controller) remove(ctx context.Context, s *spot, now time.Time, how verdict) error {
	s.detaching = now
	options := metav1.DeleteOptions{}
	uid := types.UID("none")
	if s.found != nil {
		uid = s.found.UID
		options.Preconditions = &metav1.Preconditions{UID: &uid}
	}
	err := c.client.StorageV1().VolumeAttachments().Delete(ctx, s.name, options)
	if err != nil && !apierrors.IsNotFound(err) {
		c.meters.detached(s, now, err)
		s.detaching = time.Time{}
		return fmt.Errorf("delete attachment: %w", err)
	}
	s.deleted = uid
	c.meters.forced(how)
	c.ledger.set(s.node, s.volume, unlisted)
	if err != nil {
		c.volumeQueue.Add(s.volume) // there is no event to wait for
	}
	return nil
}

// detached records that the VolumeAttachment is gone.
func (c *controller) detached(s *spot, now time.Time) {
	if s.deleted != "" {
		c.meters.detached(s, now, nil)
	}
	delete(s.told, "")
	s.created, s.deleted, s.detaching, s.attaching, s.idle = "", "", time.Time{}, time.Time{}, time.Time{}
}
