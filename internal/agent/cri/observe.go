// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// Observe queries the runtime's whole state of one pod. It queries containers first: a sandbox that goes down takes its containers with it,
// and an ended container must never appear in a ready sandbox just because the sandbox was queried earlier.
func (c *Client) Observe(ctx context.Context, uid types.UID) (*podstate.Pod, error) {
	ctx = Quiet(ctx)
	selector := map[string]string{podstate.LabelPodUID: string(uid)}
	pod := &podstate.Pod{UID: uid}

	containers, err := c.Runtime.ListContainers(ctx, &runtimeapi.ContainerFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list containers of pod %s: %w", uid, err)
	}
	for _, listed := range containers {
		if listed.Labels[podstate.LabelPodUID] != string(uid) { // do not trust the runtime's filter
			continue
		}
		resp, err := c.Runtime.ContainerStatus(ctx, listed.Id, false)
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ask status of container %s: %w", listed.Id, err)
		}
		pod.Containers = append(pod.Containers, containerOf(resp.Status, listed.PodSandboxId))
	}
	sandboxes, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.PodSandboxFilter{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes of pod %s: %w", uid, err)
	}
	for _, s := range sandboxes {
		if s.Labels[podstate.LabelPodUID] != string(uid) {
			continue
		}
		pod.Namespace, pod.Name = s.Labels[podstate.LabelPodNamespace], s.Labels[podstate.LabelPodName]
		resp, err := c.Runtime.PodSandboxStatus(ctx, s.Id, false)
		if IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get status of sandbox %s: %w", s.Id, err)
		}
		pod.Sandboxes = append(pod.Sandboxes, sandboxOf(resp.Status))
	}
	// Attempts increase, while the clock may have been set back between two of them.
	slices.SortStableFunc(pod.Sandboxes, func(a, b podstate.Sandbox) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created))
	})
	slices.SortStableFunc(pod.Containers, func(a, b podstate.Container) int {
		return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.Created.Compare(a.Created))
	})
	return pod, nil
}

func sandboxOf(s *runtimeapi.PodSandboxStatus) podstate.Sandbox {
	out := podstate.Sandbox{
		ID:          s.Id,
		Attempt:     s.GetMetadata().GetAttempt(),
		Created:     time.Unix(0, s.CreatedAt),
		Ready:       s.State == runtimeapi.PodSandboxState_SANDBOX_READY,
		HostNetwork: s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE,
		Networked:   s.Network != nil,
	}
	// The addresses get into the pod's status and into hosts files, and the node dials them. Whatever the network plug-ins report, a pod has
	// one address of each family, and never a loopback or link-local one.
	seen := map[bool]bool{}
	for _, ip := range append([]*runtimeapi.PodIP{{Ip: s.GetNetwork().GetIp()}}, s.GetNetwork().GetAdditionalIps()...) {
		a, err := netip.ParseAddr(ip.GetIp())
		if a = a.Unmap(); err != nil || !a.IsGlobalUnicast() || a.Zone() != "" || seen[a.Is6()] {
			continue
		}
		seen[a.Is6()] = true
		out.IPs = append(out.IPs, a.String())
	}
	return out
}

func containerOf(s *runtimeapi.ContainerStatus, sandbox string) podstate.Container {
	out := podstate.Container{
		ID:        s.Id,
		Name:      s.Labels[podstate.LabelContainerName],
		SandboxID: sandbox,
		Attempt:   s.GetMetadata().GetAttempt(),
		State:     StateOf(s.State),
		Created:   at(s.CreatedAt),
		Started:   at(s.StartedAt),
		Finished:  at(s.FinishedAt),
		ExitCode:  s.ExitCode,
		Reason:    s.Reason,
		Message:   s.Message,
		Image:     s.GetImage().GetImage(),
		ImageRef:  s.ImageRef,
		ImageID:   s.ImageId,
		LogPath:   s.LogPath,
		Note:      podstate.ReadNote(s.Annotations),
		User:      s.GetUser().GetLinux(),
		Mounts:    s.Mounts,
	}
	if out.Name == "" {
		out.Name = s.GetMetadata().GetName()
	}
	return out
}

// StateOf converts a CRI state.
func StateOf(s runtimeapi.ContainerState) podstate.State {
	switch s {
	case runtimeapi.ContainerState_CONTAINER_CREATED:
		return podstate.Created
	case runtimeapi.ContainerState_CONTAINER_RUNNING:
		return podstate.Running
	case runtimeapi.ContainerState_CONTAINER_EXITED:
		return podstate.Exited
	}
	return podstate.Unknown
}

// at converts nanoseconds since 1970; CRI's zero means never.
func at(nanoseconds int64) time.Time {
	if nanoseconds <= 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}
