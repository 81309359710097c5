// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Why a pod's devices did not become ready.
var (
	ErrDeviceBindingTimeout = errors.New("device binding timeout")
	ErrDeviceBindingFailed  = errors.New("device binding failed")
)

// conditional reports whether any of a claim's devices must become ready first.
func conditional(claim *resourcev1.ResourceClaim) bool {
	return claim.Status.Allocation != nil && slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool {
			return len(r.BindingConditions) > 0
		})
}

// readiness reports whether all of a claim's devices are ready, as their driver reports; the error means that one never will be.
func readiness(claim *resourcev1.ResourceClaim) (ready bool, err error) {
	if claim.Status.Allocation == nil {
		return false, nil
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		at := slices.IndexFunc(claim.Status.Devices, func(d resourcev1.AllocatedDeviceStatus) bool {
			return d.Device == r.Device && d.Driver == r.Driver && d.Pool == r.Pool
		})
		if at < 0 {
			return false, nil
		}
		conditions := claim.Status.Devices[at].Conditions
		for _, name := range r.BindingFailureConditions {
			if c := apimeta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
				return false, fmt.Errorf("%w: claim=%s, reason=%s, message=%q", ErrDeviceBindingFailed, claim.Name, c.Reason,
					c.Message) // upstream's words
			}
		}
		for _, name := range r.BindingConditions {
			if !apimeta.IsStatusConditionTrue(conditions, name) {
				return false, nil
			}
		}
	}
	return true, nil
}

// late reports whether the time for a claim's devices to become ready is over.
func (p *plugin) late(claim *resourcev1.ResourceClaim) bool {
	return conditional(claim) && claim.Status.Allocation.AllocationTimestamp != nil &&
		claim.Status.Allocation.AllocationTimestamp.Add(p.bindingTimeout).Before(time.Now())
}

// follower is a tracker of claims that signals changes.
type follower interface{ Changed() <-chan struct{} }

// awaitDevices returns when all devices of the pod's claims are ready, or can no longer become so.
func (p *plugin) awaitDevices(ctx context.Context, s *state) error {
	late := time.NewTimer(p.bindingTimeout)
	defer late.Stop()
	for {
		changed := p.changed()
		ready, err := p.devicesReady(s)
		if ready || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-late.C:
			return fmt.Errorf("%w: %w", ErrDeviceBindingTimeout, context.DeadlineExceeded)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// awaited records how long that took.
func (p *plugin) awaited(s *state, err error, took time.Duration) {
	status := "success"
	switch {
	case err == nil:
	case errors.Is(err, ErrDeviceBindingTimeout):
		status = "timeout"
	case errors.Is(err, ErrDeviceBindingFailed):
		status = "failure"
	default:
		status = "error"
	}
	var drivers, conditional []string
	for _, claim := range s.claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			r := &claim.Status.Allocation.Devices.Results[i]
			if drivers = append(drivers, r.Driver); len(r.BindingConditions) > 0 {
				conditional = append(conditional, r.Driver)
			}
		}
	}
	p.metrics.DevicesAwaited(p.handle.ProfileName(), drivers, conditional, status, took)
}

func (p *plugin) changed() <-chan struct{} {
	if f, ok := p.devices.ResourceClaims().(follower); ok {
		return f.Changed()
	}
	return nil
}

func (p *plugin) devicesReady(s *state) (bool, error) {
	for i, claim := range s.claims {
		if claim.Status.Allocation == nil {
			continue // for extended resources that the node has without it
		}
		claim, err := p.devices.ResourceClaims().Get(claim.Namespace, claim.Name)
		if err != nil {
			return false, err
		}
		s.claims[i] = claim
		ready, err := readiness(claim)
		switch {
		case err != nil:
			return false, err
		case !ready && p.late(claim):
			return false, fmt.Errorf("%w: claim=%s", ErrDeviceBindingTimeout, claim.Name)
		case !ready:
			return false, nil
		}
	}
	return true, nil
}
