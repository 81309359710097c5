// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeinfo

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// The usage that scoring assumes for a container without requests.
const (
	DefaultMilliCPU = 100
	DefaultMemory   = 200 * 1024 * 1024
)

// Resource is an amount of a node's resources.
type Resource struct {
	MilliCPU, Memory, EphemeralStorage int64
	AllowedPodNumber                   int
	Scalar                             map[corev1.ResourceName]int64 // nil if there are none
}

var _ fwk.Resource = (*Resource)(nil)

// GetMilliCPU and the following methods read the amount.
func (r *Resource) GetMilliCPU() int64         { return r.MilliCPU }
func (r *Resource) GetMemory() int64           { return r.Memory }
func (r *Resource) GetEphemeralStorage() int64 { return r.EphemeralStorage }
func (r *Resource) GetAllowedPodNumber() int   { return r.AllowedPodNumber }

// GetScalarResources returns the extended resources. The map is shared: do not change it.
func (r *Resource) GetScalarResources() map[corev1.ResourceName]int64 { return r.Scalar }

// SetMaxResource raises each amount to that in rl if it is lower.
func (r *Resource) SetMaxResource(rl corev1.ResourceList) {
	for name, q := range rl {
		switch name {
		case corev1.ResourceCPU:
			r.MilliCPU = max(r.MilliCPU, q.MilliValue())
		case corev1.ResourceMemory:
			r.Memory = max(r.Memory, q.Value())
		case corev1.ResourceEphemeralStorage:
			r.EphemeralStorage = max(r.EphemeralStorage, q.Value())
		case corev1.ResourcePods:
		default:
			if IsScalar(name) {
				if r.Scalar == nil {
					r.Scalar = map[corev1.ResourceName]int64{}
				}
				r.Scalar[name] = max(r.Scalar[name], q.Value())
			}
		}
	}
}

// NewResource converts a resource list.
func NewResource(rl corev1.ResourceList) *Resource {
	r := &Resource{}
	r.SetMaxResource(rl)
	if q, ok := rl[corev1.ResourcePods]; ok {
		r.AllowedPodNumber = int(q.Value())
	}
	return r
}

func (r *Resource) add(o *Resource, sign int64) {
	r.MilliCPU += sign * o.MilliCPU
	r.Memory += sign * o.Memory
	r.EphemeralStorage += sign * o.EphemeralStorage
	if len(o.Scalar) > 0 {
		r.Scalar = maps.Clone(r.Scalar)
		if r.Scalar == nil {
			r.Scalar = map[corev1.ResourceName]int64{}
		}
		for name, n := range o.Scalar {
			r.Scalar[name] += sign * n
		}
	}
}

// IsScalar reports whether a resource is counted beside cpu, memory, storage and pods.
func IsScalar(name corev1.ResourceName) bool {
	switch name {
	case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourcePods:
		return false
	}
	return true
}

// IsExtended reports whether a DeviceClass may back a resource: a resource of a vendor's domain, or the one named after the class itself.
func IsExtended(name corev1.ResourceName) bool {
	s := string(name)
	if strings.HasPrefix(s, resourcev1.ResourceDeviceClassPrefix) {
		return true
	}
	return strings.Contains(s, "/") && !strings.Contains(s, corev1.ResourceDefaultNamespacePrefix) &&
		!strings.HasPrefix(s, corev1.DefaultResourceRequestsPrefix)
}
