// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// memoryInUse is why a pod cannot have less memory, as it is to have: it uses more, or one of its containers does. The kernel would end
// processes for it, or refuse when other bounds have been changed already.
func (w *worker) memoryInUse(ctx context.Context, pod *corev1.Pod) error {
	var errs []error
	if most, used, less := w.n.lessThanUsed(pod); less {
		errs = append(errs, fmt.Errorf("attempting to set pod memory limit (%d) below current usage (%d)", most, used))
	}
	lower := w.lowerMemory(pod)
	if len(lower) > 0 {
		stats, err := w.n.cri.Runtime.ListContainerStats(cri.Quiet(ctx), &runtimeapi.ContainerStatsFilter{
			LabelSelector: map[string]string{podstate.LabelPodUID: string(pod.UID)},
		})
		if err != nil {
			errs = append(errs, errors.New(cri.Message(err)))
		}
		for _, s := range stats {
			most, is := lower[s.GetAttributes().GetId()]
			if used := int64(s.GetMemory().GetUsageBytes().GetValue()); is && used >= most {
				errs = append(errs, fmt.Errorf("attempting to set container %q memory limit (%d) below current usage (%d)", s.GetAttributes().GetMetadata().GetName(), most, used))
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("cannot decrease memory limits: %w", utilerrors.NewAggregate(errs))
}

// lessThanUsed says whether the pod's cgroup is to have less memory than it has, and than is used in it.
func (n *node) lessThanUsed(pod *corev1.Pod) (most, used int64, less bool) {
	most = n.config.Pod(pod).Memory
	if most == 0 || n.config.Flat {
		return 0, 0, false
	}
	g, parent := cgroups{root: cmp.Or(n.CgroupFS, cgroupAll)}, n.config.CgroupParent(pod)
	limit, _ := g.file(parent, "memory", "memory.limit_in_bytes", "memory.max")
	usage, _ := g.file(parent, "memory", "memory.usage_in_bytes", "memory.current")
	used, known := hardware.Number(usage)
	return most, used, known && used >= most && wider(hardware.Line(limit), strconv.FormatInt(most, 10))
}

// lowerMemory are the bounds of running containers that are to have less memory without being started again, by their IDs.
func (w *worker) lowerMemory(pod *corev1.Pod) map[string]int64 {
	out := map[string]int64{}
	for _, c := range w.state.Running() {
		spec := podspec.Container(pod, c.Name)
		if spec == nil || c.State != podstate.Running {
			continue
		}
		own, shared := w.bounds(pod, c.ID, spec), w.shared(pod, c.ID)
		have := own.Limits[corev1.ResourceMemory]
		if have.IsZero() {
			have = shared[corev1.ResourceMemory]
		}
		most := w.n.config.Resources(pod, spec).MemoryLimitInBytes
		if most != 0 && (have.IsZero() || most < have.Value()) && !restarts(spec, append(changedResources(own, spec.Resources), changedShares(shared, pod, spec)...)) {
			out[c.ID] = most
		}
	}
	return out
}
