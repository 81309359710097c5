// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fakecri

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox implements the runtime service.
func (r *Runtime) RunPodSandbox(_ context.Context, request *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.id("sandbox")
	r.sandboxes[id] = &sandbox{config: request.Config, created: r.now(), ready: true, ip: fmt.Sprintf("10.1.0.%d", r.next)}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox implements the runtime service.
func (r *Runtime) StopPodSandbox(_ context.Context, request *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.sandboxes[request.PodSandboxId]; s != nil {
		s.ready = false
		for id, c := range r.containers {
			if c.sandbox == request.PodSandboxId && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
				r.exit(id, c, 137)
			}
		}
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// RemovePodSandbox implements the runtime service.
func (r *Runtime) RemovePodSandbox(_ context.Context, request *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sandboxes, request.PodSandboxId)
	for id, c := range r.containers {
		if c.sandbox == request.PodSandboxId {
			delete(r.containers, id)
		}
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func stateOf(ready bool) runtimeapi.PodSandboxState {
	if ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// PodSandboxStatus implements the runtime service.
func (r *Runtime) PodSandboxStatus(_ context.Context, request *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sandboxes[request.PodSandboxId]
	if s == nil {
		return nil, notFound("sandbox", request.PodSandboxId)
	}
	return &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
		Id: request.PodSandboxId, Metadata: s.config.Metadata, State: stateOf(s.ready), CreatedAt: s.created.UnixNano(),
		Labels: s.config.Labels, Annotations: s.config.Annotations, Network: &runtimeapi.PodSandboxNetworkStatus{Ip: s.ip},
		Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: s.config.GetLinux().GetSecurityContext().GetNamespaceOptions()}},
	}}, nil
}

func selected(labels, selector map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// ListPodSandbox implements the runtime service.
func (r *Runtime) ListPodSandbox(_ context.Context, request *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListPodSandboxResponse{}
	for id, s := range r.sandboxes {
		if selected(s.config.Labels, request.GetFilter().GetLabelSelector()) {
			out.Items = append(out.Items, &runtimeapi.PodSandbox{Id: id, Metadata: s.config.Metadata, State: stateOf(s.ready),
				CreatedAt: s.created.UnixNano(), Labels: s.config.Labels})
		}
	}
	return out, nil
}

// CreateContainer implements the runtime service.
func (r *Runtime) CreateContainer(_ context.Context, request *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch s := r.sandboxes[request.PodSandboxId]; {
	case s == nil:
		return nil, notFound("sandbox", request.PodSandboxId)
	case !s.ready:
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", request.PodSandboxId)
	}
	id := r.id("container")
	r.containers[id] = &container{
		sandbox: request.PodSandboxId, config: request.Config, created: r.now(),
		logPath: filepath.Join(request.SandboxConfig.LogDirectory, request.Config.LogPath),
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer implements the runtime service.
func (r *Runtime) StartContainer(_ context.Context, request *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[request.ContainerId]
	if c == nil {
		return nil, notFound("container", request.ContainerId)
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, r.now()
	r.tell(request.ContainerId, c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return &runtimeapi.StartContainerResponse{}, nil
}

// StopContainer implements the runtime service.
func (r *Runtime) StopContainer(_ context.Context, request *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c := r.containers[request.ContainerId]; c != nil && c.state == runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.exit(request.ContainerId, c, 143)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// RemoveContainer implements the runtime service.
func (r *Runtime) RemoveContainer(_ context.Context, request *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.containers, request.ContainerId)
	return &runtimeapi.RemoveContainerResponse{}, nil
}

// ListContainers implements the runtime service.
func (r *Runtime) ListContainers(_ context.Context, request *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListContainersResponse{}
	for id, c := range r.containers {
		if selected(c.config.Labels, request.GetFilter().GetLabelSelector()) {
			out.Containers = append(out.Containers, &runtimeapi.Container{Id: id, PodSandboxId: c.sandbox, Metadata: c.config.Metadata,
				Image: c.config.Image, State: c.state, CreatedAt: c.created.UnixNano(), Labels: c.config.Labels, Annotations: c.config.Annotations})
		}
	}
	return out, nil
}

// ContainerStatus implements the runtime service.
func (r *Runtime) ContainerStatus(_ context.Context, request *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse,
	error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.containers[request.ContainerId]
	if c == nil {
		return nil, notFound("container", request.ContainerId)
	}
	nano := func(t time.Time) int64 {
		if t.IsZero() {
			return 0
		}
		return t.UnixNano()
	}
	return &runtimeapi.ContainerStatusResponse{Status: &runtimeapi.ContainerStatus{
		Id: request.ContainerId, Metadata: c.config.Metadata, State: c.state, CreatedAt: nano(c.created), StartedAt: nano(c.started),
		FinishedAt: nano(c.finished),
		ExitCode:   c.code, Reason: c.reason, Image: &runtimeapi.ImageSpec{Image: c.config.Image.UserSpecifiedImage},
		ImageRef: c.config.Image.Image,
		Labels:   c.config.Labels, Annotations: c.config.Annotations, Mounts: c.config.Mounts, LogPath: c.logPath,
	}}, nil
}

// ExecSync implements the runtime service.
func (r *Runtime) ExecSync(_ context.Context, request *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	r.mu.Lock()
	exec := r.exec
	r.mu.Unlock()
	if exec == nil {
		return &runtimeapi.ExecSyncResponse{}, nil
	}
	output, code := exec(request.Cmd)
	return &runtimeapi.ExecSyncResponse{Stdout: []byte(output), ExitCode: code}, nil
}

// ImageStatus implements the image service.
func (r *Runtime) ImageStatus(_ context.Context, request *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := strings.TrimPrefix(request.Image.Image, "sha256:")
	if !r.images[name] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	image := &runtimeapi.Image{Id: r.idOf(request.Image.Image), RepoTags: []string{name}, Size: 42, Uid: &runtimeapi.Int64Value{}}
	if user, ok := r.users[name]; ok {
		image.Uid, image.Username = nil, user.name
		if user.uid != nil {
			image.Uid = &runtimeapi.Int64Value{Value: *user.uid}
		}
	}
	return &runtimeapi.ImageStatusResponse{Image: image}, nil
}

// PullImage implements the image service.
func (r *Runtime) PullImage(_ context.Context, request *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.pullable[request.Image.Image] {
		return nil, status.Errorf(codes.NotFound, "failed to pull and unpack image %q: not found", request.Image.Image)
	}
	if users, ok := r.private[request.Image.Image]; ok &&
		!(slices.Contains(users, request.GetAuth().GetUsername()) && request.Auth.Password == "secret") {
		return nil, status.Errorf(codes.Unknown, "failed to pull and unpack image %q: unauthorized", request.Image.Image)
	}
	r.images[request.Image.Image] = true
	return &runtimeapi.PullImageResponse{ImageRef: r.idOf(request.Image.Image)}, nil
}

// ImageFsInfo implements the image service.
func (r *Runtime) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{}, nil
}

// ListImages implements the image service.
func (r *Runtime) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &runtimeapi.ListImagesResponse{}
	for name := range r.images {
		out.Images = append(out.Images, &runtimeapi.Image{Id: "sha256:" + name, RepoTags: []string{name}, Size: 42})
	}
	return out, nil
}
