// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/devicemanager/checkpoint"
)

// device is what its plug-in says of it.
type device struct {
	healthy bool
	numa    []int64 // none: the plug-in does not say
}

// resource are the devices of one name, such as example.com/gpu. Manager.mu guards all fields but allocating.
type resource struct {
	// allocating is held while a container's devices are chosen and allocated, calls to the plug-in included: a plug-in that hangs hinders
	// only the pods that want its devices.
	allocating chan struct{}

	plugins []*plugin         // connected ones, the newest last: that one's devices count
	devices map[string]device // of the newest plug-in; of one that is gone, as it left them, but unhealthy
	gone    time.Time         // when the last plug-in went, or the node started; zero: one is connected
	expired bool              // it has been gone for the grace period
	used    map[string]types.UID
}

func newResource(gone time.Time) *resource {
	return &resource{allocating: make(chan struct{}, 1), devices: map[string]device{}, gone: gone, used: map[string]types.UID{}}
}

// lock locks allocating, unless ctx ends before.
func (r *resource) lock(ctx context.Context) error {
	select {
	case r.allocating <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *resource) unlock() { <-r.allocating }

// newest returns the plug-in that serves the resource; nil: there is none.
func (r *resource) newest() *plugin {
	if len(r.plugins) == 0 {
		return nil
	}
	return r.plugins[len(r.plugins)-1]
}

// ready reports whether a plug-in is connected and has sent its devices.
func (r *resource) ready() bool {
	p := r.newest()
	return p != nil && p.listed
}

// free returns the healthy devices that no pod has, sorted.
func (r *resource) free() []string {
	var out []string
	for id, d := range r.devices {
		if _, used := r.used[id]; !used && d.healthy {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// count returns how many devices there are, and how many of them are healthy.
func (r *resource) count() (all, healthy int64) {
	for _, d := range r.devices {
		all++
		if d.healthy {
			healthy++
		}
	}
	return all, healthy
}

// aligned reports whether any device has a NUMA node.
func (r *resource) aligned() bool {
	for _, d := range r.devices {
		if len(d.numa) > 0 {
			return true
		}
	}
	return false
}

// perNUMA groups devices by their NUMA nodes, in the checkpoint's form.
func (r *resource) perNUMA(ids []string) checkpoint.DevicesPerNUMA {
	out := checkpoint.DevicesPerNUMA{}
	for _, id := range ids {
		nodes := r.devices[id].numa
		if len(nodes) == 0 {
			nodes = []int64{checkpoint.NoNUMA}
		}
		for _, n := range nodes {
			out[n] = append(out[n], id)
		}
	}
	return out
}

// allocation is what a container has of one resource.
type allocation struct {
	ids      []string // sorted
	numa     checkpoint.DevicesPerNUMA
	response *pluginapi.ContainerAllocateResponse
	former   bool // a former process of the node allocated it
}

// podDevices is what a pod has: by container, by resource.
type podDevices map[string]map[string]*allocation

func (p podDevices) set(container, resource string, a *allocation) {
	if p[container] == nil {
		p[container] = map[string]*allocation{}
	}
	p[container][resource] = a
}

// idsOf returns the IDs of all NUMA nodes, sorted, each once.
func idsOf(numa checkpoint.DevicesPerNUMA) []string {
	set := map[string]bool{}
	for _, ids := range numa {
		for _, id := range ids {
			set[id] = true
		}
	}
	return slices.SortedFunc(maps.Keys(set), strings.Compare)
}
