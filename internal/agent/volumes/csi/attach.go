// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/podfit"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// attachWait is how long a pod waits for an attachment until an event tells of it, again and again. It is kubelet's.
const attachWait = 2*time.Minute + 3*time.Second

// wait is a volume of a pod that waits.
type wait struct {
	pod  types.UID
	name string
}

// node returns the driver's node service. A pod whose driver has not registered is looked at when it does. If the node expects the driver,
// the pod waits with a condition that names it, instead of failing again and again. The messages are upstream's.
func (p *caller) node(v *volume) (csipb.NodeClient, error) {
	node, err := p.host.Drivers.Node(v.driver)
	if err == nil {
		return node, nil
	}
	p.host.Drivers.WakeAtRegistration(v.driver, v.pod.UID)
	if slices.Contains(p.host.Expected, v.driver) {
		return nil, &containermanager.Hold{
			Plugin: v.driver, Until: p.host.Clock.Now().Add(attachWait),
			Message: fmt.Sprintf("waiting for the CSI driver %s to register", v.driver),
		}
	}
	switch {
	case v.ephemeral:
		return nil, v.failed(stepSetUp, fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: %w", err))
	case v.block:
		return nil, v.failed(stepStage, fmt.Errorf("kubernetes.io/csi: blockMapper.SetUpDevice failed to get CSI client: %w", err))
	}
	return nil, v.failed(stepDevice, fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: %w", err))
}

// attached returns the metadata of the volume's attachment. It returns a hold while the volume is not attached.
func (p *caller) attached(ctx context.Context, v *volume) (map[string]string, error) {
	if !v.attach {
		return nil, nil
	}
	p.use(wait{v.pod.UID, v.name}, device{v.driver, v.handle})
	metadata, ok, err := p.host.Attachments.Attached(ctx, v.driver, v.handle, v.pod.UID)
	if err != nil {
		return nil, v.failed(stepAttach, err)
	}
	key, now := wait{v.pod.UID, v.name}, p.host.Clock.Now()
	if ok {
		p.endWait(key)
		return metadata, nil
	}
	if until := p.waitsUntil(key, now); now.Before(until) {
		return nil, &containermanager.Hold{Until: until, Message: "waiting for the attachment of volume " + v.name}
	}
	// upstream's words
	why := fmt.Errorf("unmounted volumes=[%[1]s], unattached volumes=[%[1]s], failed to process volumes=[]: %[2]w",
		v.spec.Volume.Name, errTimeout)
	if c := v.class; c != nil && ptr.Deref(c.Spec.NodeAllocatableUpdatePeriodSeconds, 0) > 0 && p.host.Attachments.Exhausted(
		ctx, v.driver, v.handle) {
		p.endWait(key)
		p.unuse(key)
		p.letGo(device{v.driver, v.handle})
		return nil, &podfit.Rejection{Reason: "VolumeAttachmentLimitExceeded",
			Message: "Node has reached its volume attachment limit, rejecting pod. " + why.Error()}
	}
	return nil, &volumes.StepError{Err: fmt.Errorf("Unable to attach or mount volumes: %w", why)}
}

// waitsUntil returns when a wait is over, which it begins if there is none. One that is over begins anew.
func (p *memory) waitsUntil(key wait, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, waits := p.waits[key]
	if !waits {
		since = now
	}
	until := since.Add(attachWait)
	if p.waits[key] = since; !now.Before(until) {
		p.waits[key] = now
	}
	return until
}

// endWait ends a wait.
func (p *memory) endWait(key wait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waits, key)
}

var errTimeout = errors.New("context deadline exceeded")
