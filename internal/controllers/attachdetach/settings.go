// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"errors"
	"time"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const (
	// unmountWait is how long a node that is not ready may leave a volume mounted before it is detached anyway.
	unmountWait = 6 * time.Minute
	// answerWait is how long the external-attacher may take before the controller reports that it waits.
	answerWait = 2 * time.Minute
)

type settings struct {
	period  time.Duration // how long a lost attachment may go unnoticed; the controller sees it at once
	noSync  bool          // lost attachments are not attached again
	noForce bool          // nodes that are not ready keep their volumes until they have the taint out-of-service
}

func defaults() *settings { return &settings{period: time.Minute} }

func (s *settings) declare() []controllers.Setting {
	const fields = "controllers.attachDetach."
	return []controllers.Setting{
		{
			Flag: "attach-detach-reconcile-sync-period", Field: fields + "reconcilerSyncLoopPeriod", Value: controllers.Value(&s.period),
			Usage: "Interval at which to look whether volumes are still attached, at least one second. It has no effect: the controller follows " +
				"VolumeAttachments.",
		},
		{
			Flag: "disable-attach-detach-reconcile-sync", Field: fields + "disableAttachDetachReconcilerSync", Value: controllers.Value(&s.noSync),
			Usage: "Do not attach a volume again whose VolumeAttachment was deleted or set to detached by another client.",
		},
		{
			Flag: "disable-force-detach-on-timeout", Field: fields + "disableForceDetachOnTimeout", Value: controllers.Value(&s.noForce),
			Usage: "Do not detach mounted volumes after six minutes from a node that is not ready. Then only the taint " +
				"node.kubernetes.io/out-of-service frees them.",
		},
	}
}

func (s *settings) check() error {
	if s.period < time.Second {
		// upstream's words
		return errors.New("duration time must be greater than one second as set via command line option reconcile-sync-loop-period")
	}
	return nil
}
