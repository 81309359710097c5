// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fakecri

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Streams enables streamed lists, which runtimes support since CRI 1.36.
func (r *Runtime) Streams() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = true
}

// Streamed returns the number of streamed lists.
func (r *Runtime) Streamed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.streamed
}

// one counts a streamed list, or returns Unimplemented if streamed lists are disabled.
func (r *Runtime) one() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.streams {
		return status.Error(codes.Unimplemented, "unknown method")
	}
	r.streamed++
	return nil
}

// each sends the items one by one.
func each[T any](list []T, send func(T) error) error {
	for _, o := range list {
		if err := send(o); err != nil {
			return err
		}
	}
	return nil
}

// StreamPodSandboxes implements the runtime service.
func (r *Runtime) StreamPodSandboxes(q *runtimeapi.StreamPodSandboxesRequest,
	s grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	if err := r.one(); err != nil {
		return err
	}
	all, err := r.ListPodSandbox(s.Context(), &runtimeapi.ListPodSandboxRequest{Filter: q.Filter})
	if err != nil {
		return err
	}
	return each(all.Items, func(o *runtimeapi.PodSandbox) error {
		return s.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: []*runtimeapi.PodSandbox{o}})
	})
}

// StreamContainers implements the runtime service.
func (r *Runtime) StreamContainers(q *runtimeapi.StreamContainersRequest,
	s grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	if err := r.one(); err != nil {
		return err
	}
	all, err := r.ListContainers(s.Context(), &runtimeapi.ListContainersRequest{Filter: q.Filter})
	if err != nil {
		return err
	}
	return each(all.Containers, func(o *runtimeapi.Container) error {
		return s.Send(&runtimeapi.StreamContainersResponse{Containers: []*runtimeapi.Container{o}})
	})
}

// StreamContainerStats implements the runtime service.
func (r *Runtime) StreamContainerStats(q *runtimeapi.StreamContainerStatsRequest,
	s grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	if err := r.one(); err != nil {
		return err
	}
	all, err := r.ListContainerStats(s.Context(), &runtimeapi.ListContainerStatsRequest{Filter: q.Filter})
	if err != nil {
		return err
	}
	return each(all.Stats, func(o *runtimeapi.ContainerStats) error {
		return s.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: []*runtimeapi.ContainerStats{o}})
	})
}

// StreamImages implements the image service.
func (r *Runtime) StreamImages(q *runtimeapi.StreamImagesRequest, s grpc.ServerStreamingServer[runtimeapi.StreamImagesResponse]) error {
	if err := r.one(); err != nil {
		return err
	}
	all, err := r.ListImages(s.Context(), &runtimeapi.ListImagesRequest{Filter: q.Filter})
	if err != nil {
		return err
	}
	return each(all.Images, func(o *runtimeapi.Image) error {
		return s.Send(&runtimeapi.StreamImagesResponse{Images: []*runtimeapi.Image{o}})
	})
}
