// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containermanager

import (
	"maps"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Options are what the runtime shall give to a container, beside what its definition says.
type Options struct {
	Envs        map[string]string // the container's own variables win
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	Annotations map[string]string // the node's own annotations win
	CDIDevices  []*runtimeapi.CDIDevice

	CPUs        string // cpuset.cpus; empty: all
	MemoryNodes string // cpuset.mems; empty: all
	NoQuota     bool   // the container has its CPUs for itself, and no CFS quota
}

// Apply merges the options into a container's configuration.
func (o *Options) Apply(config *runtimeapi.ContainerConfig) {
	if o == nil {
		return
	}
	config.Mounts = append(slices.Clone(o.Mounts), config.Mounts...)
	config.Devices = append(config.Devices, o.Devices...)
	config.CDIDevices = append(config.CDIDevices, o.CDIDevices...)
	for name, value := range o.Annotations {
		if _, taken := config.Annotations[name]; taken {
			continue
		}
		if config.Annotations == nil {
			config.Annotations = map[string]string{}
		}
		config.Annotations[name] = value
	}
	if r := config.GetLinux().GetResources(); r != nil {
		if o.CPUs != "" {
			r.CpusetCpus = o.CPUs
		}
		if o.MemoryNodes != "" {
			r.CpusetMems = o.MemoryNodes
		}
		if o.NoQuota {
			r.CpuQuota = -1
		}
	}
}

// Variables returns the names of the environment variables, sorted.
func (o *Options) Variables() []string {
	if o == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(o.Envs), strings.Compare)
}
