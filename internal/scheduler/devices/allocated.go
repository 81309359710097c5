// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"iter"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// device is a claim's share of one device.
type device struct {
	id       structured.DeviceID
	share    *types.UID // nil: the whole device
	consumed map[resourcev1.QualifiedName]resource.Quantity
}

// allocated yields the devices that a claim takes from others, without those allocated for admin access.
func allocated(claim *resourcev1.ResourceClaim) iter.Seq[device] {
	return func(yield func(device) bool) {
		if claim == nil || claim.Status.Allocation == nil {
			return
		}
		for i := range claim.Status.Allocation.Devices.Results {
			r := &claim.Status.Allocation.Devices.Results[i]
			if r.AdminAccess != nil && *r.AdminAccess {
				continue
			}
			if !yield(device{structured.MakeDeviceID(r.Driver, r.Pool, r.Device), r.ShareID, r.ConsumedCapacity}) {
				return
			}
		}
	}
}

// taken counts the claims of each device.
type taken struct {
	alone    map[structured.DeviceID]int
	shared   map[structured.SharedDeviceID]int
	capacity structured.ConsumedCapacityCollection
}

func newTaken() *taken {
	return &taken{
		alone: map[structured.DeviceID]int{}, shared: map[structured.SharedDeviceID]int{},
		capacity: structured.NewConsumedCapacityCollection(),
	}
}

// count adds a claim's devices (by 1), or removes them (by -1).
func (t *taken) count(claim *resourcev1.ResourceClaim, by int) {
	for d := range allocated(claim) {
		if d.share == nil {
			tally(t.alone, d.id, by)
			continue
		}
		tally(t.shared, structured.MakeSharedDeviceID(d.id, d.share), by)
		switch {
		case d.consumed == nil:
		case by > 0:
			t.capacity.Insert(structured.NewDeviceConsumedCapacity(d.id, d.consumed))
		default:
			t.capacity.Remove(structured.NewDeviceConsumedCapacity(d.id, d.consumed))
		}
	}
}

func tally[K comparable](m map[K]int, k K, by int) {
	if m[k] += by; m[k] == 0 {
		delete(m, k)
	}
}

// state returns a copy in the allocator's form.
func (t *taken) state() *structured.AllocatedState {
	return &structured.AllocatedState{
		AllocatedDevices: sets.KeySet(t.alone), AllocatedSharedDeviceIDs: sets.KeySet(t.shared), AggregatedCapacity: t.capacity.Clone(),
	}
}

func add(state *structured.AllocatedState, claim *resourcev1.ResourceClaim) {
	for d := range allocated(claim) {
		if d.share == nil {
			state.AllocatedDevices.Insert(d.id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(d.id, d.share))
		if d.consumed != nil {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(d.id, d.consumed))
		}
	}
}
