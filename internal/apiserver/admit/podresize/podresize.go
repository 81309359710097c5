// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podresize is the PodResizeValidator plug-in: it rejects the resize of a running pod beyond what its node can
// allocate, or on a node that does not run Linux.
package podresize

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	requests "k8s.io/component-helpers/resource"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "PodResizeValidator" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return a.Is("", "pods", "resize") && a.Operation == admit.Update
}

// Validate rejects a resize that the pod's node cannot allocate.
func (p plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	pod, _, err := admit.BoundPodUpdate(a)
	if err != nil || pod == nil {
		return err
	}
	node, err := admit.NodeOf(ctx, b, a, pod)
	if err != nil {
		return err
	}
	if os, said := node.Labels[corev1.LabelOSStable]; said && os != "linux" {
		return refused(a, fmt.Errorf("pod resize is only supported on linux nodes, node %q is %q", node.Name, os), "UnsupportedPlatform")
	}
	if short := tooMuch(pod, node.Status.Allocatable); len(short) > 0 {
		return refused(a, errors.New("node didn't have enough allocatable resources: "+strings.Join(short, "; ")), "NodeCapacity")
	}
	return nil
}

// tooMuch describes each resource of which the pod requests more than the node has.
func tooMuch(pod *corev1.Pod, has corev1.ResourceList) []string {
	var short []string
	asks := requests.PodRequests(pod, requests.PodResourcesOptions{})
	if cpu := asks[corev1.ResourceCPU]; cpu.Cmp(*has.Cpu()) > 0 {
		short = append(short, fmt.Sprintf("cpu, requested: %d, allocatable: %d", cpu.MilliValue(), has.Cpu().MilliValue()))
	}
	if memory := asks[corev1.ResourceMemory]; memory.Cmp(*has.Memory()) > 0 {
		short = append(short, fmt.Sprintf("memory, requested: %d, allocatable: %d", memory.Value(), has.Memory().Value()))
	}
	return short
}

func refused(a *admit.Attributes, reason error, cause metav1.CauseType) error {
	err := admit.Forbidden(a, reason)
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}
