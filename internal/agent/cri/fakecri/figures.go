// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fakecri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Uses sets the memory usage that the runtime reports for the containers of a pod.
func (r *Runtime) Uses(pod string, bytes uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uses == nil {
		r.uses = map[string]uint64{}
	}
	r.uses[pod] = bytes
}

// HasImage reports whether the image exists.
func (r *Runtime) HasImage(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.images[name]
}

// ListContainerStats implements the runtime service.
func (r *Runtime) ListContainerStats(context.Context, *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListContainerStatsResponse{}
	for id, c := range r.containers {
		if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			continue
		}
		used := r.uses[r.sandboxes[c.sandbox].config.Metadata.Name]
		out.Stats = append(out.Stats, &runtimeapi.ContainerStats{
			Attributes: &runtimeapi.ContainerAttributes{Id: id, Metadata: c.config.Metadata, Labels: c.config.Labels},
			Memory: &runtimeapi.MemoryUsage{WorkingSetBytes: &runtimeapi.UInt64Value{Value: used},
				UsageBytes: &runtimeapi.UInt64Value{Value: used}},
		})
	}
	return out, nil
}

// RemoveImage implements the image service.
func (r *Runtime) RemoveImage(_ context.Context, request *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.images {
		if name == request.Image.Image || "sha256:"+name == request.Image.Image {
			delete(r.images, name)
		}
	}
	return &runtimeapi.RemoveImageResponse{}, nil
}

// UpdateContainerResources implements the runtime service.
func (r *Runtime) UpdateContainerResources(_ context.Context,
	request *runtimeapi.UpdateContainerResourcesRequest) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[request.ContainerId]
	if c == nil {
		return nil, notFound("container", request.ContainerId)
	}
	c.config.Linux.Resources = request.Linux
	return &runtimeapi.UpdateContainerResourcesResponse{}, nil
}

// Quota returns the CPU quota of the running container of the name in the pod; -1 without such a container.
func (r *Runtime) Quota(pod, name string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.containers {
		if c.config.Metadata.Name == name && r.sandboxes[c.sandbox].config.Metadata.Name == pod &&
			c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
			return c.config.GetLinux().GetResources().GetCpuQuota()
		}
	}
	return -1
}

// Mounts returns the mounts of the newest instance of a container.
func (r *Runtime) Mounts(pod, name string) []*runtimeapi.Mount {
	r.mu.Lock()
	defer r.mu.Unlock()
	var newest *container
	for _, c := range r.containers {
		if r.sandboxes[c.sandbox] != nil && r.sandboxes[c.sandbox].config.Metadata.Name == pod && c.config.Metadata.Name == name &&
			(newest == nil || c.created.After(newest.created)) {
			newest = c
		}
	}
	if newest == nil {
		return nil
	}
	return newest.config.Mounts
}
