// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"slices"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// dropDerived drops derived attributes, whose gate is off, unless the old claim has some.
func dropDerived(spec, old *resourcev1.ResourceClaimSpec) {
	if upstream.Gate("DRADerivedAttributes") || slices.ContainsFunc(old.Devices.Requests, derived) {
		return
	}
	for i := range spec.Devices.Requests {
		r := &spec.Devices.Requests[i]
		if r.Exactly != nil {
			r.Exactly.DerivedAttributes = nil
		}
		for j := range r.FirstAvailable {
			r.FirstAvailable[j].DerivedAttributes = nil
		}
	}
}

func derived(r resourcev1.DeviceRequest) bool {
	return r.Exactly != nil && len(r.Exactly.DerivedAttributes) > 0 ||
		slices.ContainsFunc(r.FirstAvailable, func(s resourcev1.DeviceSubRequest) bool { return len(s.DerivedAttributes) > 0 })
}

// keepAllocated drops the devices from a claim's status that were allocated to it and no longer are.
func keepAllocated(claim, old *resourcev1.ResourceClaim) {
	type device struct{ driver, pool, name, share string }
	gone := map[device]bool{}
	mark := func(c *resourcev1.ResourceClaim, to bool) {
		if c.Status.Allocation == nil {
			return
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			d := device{driver: r.Driver, pool: r.Pool, name: r.Device}
			if r.ShareID != nil {
				d.share = string(*r.ShareID)
			}
			gone[d] = to
		}
	}
	mark(old, true)
	mark(claim, false)
	claim.Status.Devices = slices.DeleteFunc(claim.Status.Devices, func(s resourcev1.AllocatedDeviceStatus) bool {
		d := device{driver: s.Driver, pool: s.Pool, name: s.Device}
		if s.ShareID != nil {
			d.share = *s.ShareID
		}
		return gone[d]
	})
	if len(claim.Status.Devices) == 0 {
		claim.Status.Devices = nil
	}
}

// dropOff drops the fields of disabled gates from a slice, unless the old slice, nil on create, has them.
func dropOff(slice, old *resourcev1.ResourceSlice) {
	for _, f := range sliceFields {
		if upstream.Gate(f.gate) || !f.visit(slice, false) || old != nil && f.visit(old, false) {
			continue
		}
		f.visit(slice, true)
	}
}

// sliceFields are the fields of gates that can be off. visit reports whether a slice sets any, and clears them if requested.
var sliceFields = []struct {
	gate  string
	visit func(slice *resourcev1.ResourceSlice, empty bool) bool
}{
	{"DRAPartitionableDevicesType", func(s *resourcev1.ResourceSlice, empty bool) bool {
		set := s.Spec.PartitionTypeAttribute != nil
		if empty {
			s.Spec.PartitionTypeAttribute = nil
		}
		return set
	}},
	{"DRADeviceCompatibilityGroups", func(s *resourcev1.ResourceSlice, empty bool) bool {
		set := false
		for i := range s.Spec.Devices {
			for j := range s.Spec.Devices[i].ConsumesCounters {
				c := &s.Spec.Devices[i].ConsumesCounters[j]
				set = set || len(c.CompatibilityGroups) > 0
				if empty {
					c.CompatibilityGroups = nil
				}
			}
		}
		return set
	}},
	{"DRANodeAllocatableResources", func(s *resourcev1.ResourceSlice, empty bool) bool {
		set := false
		for i := range s.Spec.Devices {
			d := &s.Spec.Devices[i]
			set = set || len(d.NodeAllocatableResources) > 0
			if empty {
				d.NodeAllocatableResources = nil
			}
		}
		return set
	}},
	{"DRAListTypeAttributes", func(s *resourcev1.ResourceSlice, empty bool) bool {
		set := false
		for i := range s.Spec.Devices {
			for name, a := range s.Spec.Devices[i].Attributes {
				set = set || a.BoolValues != nil || a.IntValues != nil || a.StringValues != nil || a.VersionValues != nil
				if empty {
					a.BoolValues, a.IntValues, a.StringValues, a.VersionValues = nil, nil, nil, nil
					s.Spec.Devices[i].Attributes[name] = a
				}
			}
		}
		return set
	}},
	{"DRAOptionalNodeOperations", func(s *resourcev1.ResourceSlice, empty bool) bool {
		set := len(s.Spec.SkipNodeOperations) > 0
		if empty {
			s.Spec.SkipNodeOperations = nil
		}
		return set
	}},
}
