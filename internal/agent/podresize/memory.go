// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresize

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// memoryInUse returns why the memory limit of a pod cannot be lowered: the pod or one of its containers uses more. The kernel would kill
// processes, or reject the limit after other limits have changed.
func (r *Pod) memoryInUse(ctx context.Context, pod *corev1.Pod, state *podstate.Pod) error {
	var errs []error
	if most, used, less := r.m.Cgroups.LessThanUsed(pod); less {
		errs = append(errs, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", most, used))
	}
	lower := r.lowerMemory(pod, state)
	if len(lower) > 0 {
		stats, err := r.m.Runtime.Runtime.ListContainerStats(cri.Quiet(ctx), &runtimeapi.ContainerStatsFilter{
			LabelSelector: map[string]string{podstate.LabelPodUID: string(pod.UID)},
		})
		if err != nil {
			errs = append(errs, errors.New(cri.Message(err)))
		}
		for _, s := range stats {
			most, is := lower[s.GetAttributes().GetId()]
			if used := int64(s.GetMemory().GetUsageBytes().GetValue()); is && used >= most {
				name := s.GetAttributes().GetMetadata().GetName()
				errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", name, most, used))
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: %w", utilerrors.NewAggregate(errs))
}

// lowerMemory returns the new limits of running containers whose memory limit is lowered without a restart, by their IDs.
func (r *Pod) lowerMemory(pod *corev1.Pod, state *podstate.Pod) map[string]int64 {
	out := map[string]int64{}
	for _, c := range state.Running() {
		spec := podspec.Container(pod, c.Name)
		if spec == nil || c.State != podstate.Running {
			continue
		}
		own, shared := r.Bounds(pod, c.ID, spec), r.shared(pod, c.ID)
		have := own.Limits[corev1.ResourceMemory]
		if have.IsZero() {
			have = shared[corev1.ResourceMemory]
		}
		most := r.m.Limits.Resources(pod, spec).MemoryLimitInBytes
		changed := append(changedResources(own, spec.Resources), changedShares(shared, pod, spec)...)
		if most != 0 && (have.IsZero() || most < have.Value()) && !restarts(spec, changed) {
			out[c.ID] = most
		}
	}
	return out
}
