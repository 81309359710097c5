// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"context"
	"log/slog"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// The cgroup trees that count processes, v1 and v2.
const (
	cgroupPIDs = "/sys/fs/cgroup/pids"
	cgroupAll  = "/sys/fs/cgroup"
)

// Volumes locates the volumes of pods.
type Volumes interface {
	Path(ctx context.Context, pod *corev1.Pod, volume *corev1.Volume) (string, error)
}

// Meter measures the eviction signals. All exported fields are required.
type Meter struct {
	Runtime   *cri.Client
	Volumes   Volumes
	Resources allocatable.Node
	Config    runconfig.Node // locates the cgroups and logs of pods
	RootDir   string
	Clock     clock.PassiveClock
	Logger    *slog.Logger

	failures backoff.Failures // of the measurement of containers
}

// Observe measures all signals. It leaves out those that it cannot measure.
func (m *Meter) Observe(ctx context.Context) evict.Observations {
	out := evict.Observations{}
	if available, ok := hardware.AvailableMemory(m.Resources.Machine.Memory); ok {
		out[evict.MemoryAvailable] = evict.Observation{Available: available, Capacity: m.Resources.Machine.Memory}
	}
	reserved := m.Resources.Reserved(corev1.ResourceMemory)
	capacity := m.Resources.Machine.Memory - reserved.Value()
	if used, ok := hardware.WorkingSet(filepath.Join(m.Config.CgroupRoot, "kubepods")); ok {
		out[evict.AllocatableMemoryAvailable] = evict.Observation{Available: capacity - used, Capacity: capacity}
	}
	disk := func(path string, bytes, files evict.Signal) {
		if total, free, inodes, inodesFree, err := hardware.Space(path); err == nil {
			out[bytes] = evict.Observation{Available: free, Capacity: total}
			if inodes > 0 { // some file systems allocate them on demand
				out[files] = evict.Observation{Available: inodesFree, Capacity: inodes}
			}
		}
	}
	disk(m.RootDir, evict.NodeFSAvailable, evict.NodeFSInodesFree)
	if path := m.imagePath(ctx); path != "" {
		disk(path, evict.ImageFSAvailable, evict.ImageFSInodesFree)
	}
	if running, most, ok := (stats.Reader{}).Threads(); ok {
		out[evict.PIDAvailable] = evict.Observation{Available: most - running, Capacity: most}
	}
	return out
}

// imagePath returns the runtime's directory of images; empty: the runtime does not report it.
func (m *Meter) imagePath(ctx context.Context) string {
	resp, err := m.Runtime.Images.ImageFsInfo(cri.Quiet(ctx))
	if err != nil || len(resp.GetImageFilesystems()) == 0 {
		return ""
	}
	return resp.ImageFilesystems[0].GetFsId().GetMountpoint()
}

// imagesApart reports whether images are on another file system than the node's directory.
func (m *Meter) imagesApart(ctx context.Context) bool {
	var a, b unix.Stat_t
	path := m.imagePath(ctx)
	return path != "" && unix.Stat(path, &a) == nil && unix.Stat(m.RootDir, &b) == nil && a.Dev != b.Dev
}

// usage measures the usage of the pods.
func (m *Meter) usage(ctx context.Context, pods []*corev1.Pod) []evict.Pod {
	if len(pods) == 0 {
		return nil
	}
	stats := map[types.UID]map[string]*runtimeapi.ContainerStats{}
	list, err := m.Runtime.Runtime.ListContainerStats(cri.Quiet(ctx), nil)
	if err != nil {
		m.failures.Log(m.Clock.Now(), m.Logger.Warn, "Could not measure containers", "err", err)
	} else {
		m.failures.Clear()
	}
	for _, s := range list {
		labels := s.GetAttributes().GetLabels()
		uid := types.UID(labels[podstate.LabelPodUID])
		if stats[uid] == nil {
			stats[uid] = map[string]*runtimeapi.ContainerStats{}
		}
		stats[uid][labels[podstate.LabelContainerName]] = s
	}
	var out []evict.Pod
	for _, pod := range pods {
		p := evict.Pod{Pod: pod, Known: len(stats[pod.UID]) > 0, Processes: processesOf(m.Config.CgroupParent(pod))}
		for name, s := range stats[pod.UID] {
			c := evict.Container{
				Name: name, Memory: int64(s.GetMemory().GetWorkingSetBytes().GetValue()),
				LayerBytes:  int64(s.GetWritableLayer().GetUsedBytes().GetValue()),
				LayerInodes: int64(s.GetWritableLayer().GetInodesUsed().GetValue()),
			}
			c.LogBytes, c.LogsInodes = under(filepath.Join(m.Config.PodLogDir(pod), name))
			p.Memory += c.Memory
			p.Containers = append(p.Containers, c)
		}
		for _, v := range pod.Spec.Volumes {
			if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
				continue
			}
			if path, err := m.Volumes.Path(ctx, pod, &v); err == nil {
				bytes, inodes := under(path)
				p.Volumes = append(p.Volumes, evict.Volume{Name: v.Name, Bytes: bytes, Inodes: inodes})
			}
		}
		out = append(out, p)
	}
	return out
}

// processesOf counts the processes in a cgroup.
func processesOf(cgroup string) int64 {
	for _, root := range []string{cgroupPIDs, cgroupAll} {
		if count, ok := hardware.Number(filepath.Join(root, cgroup, "pids.current")); ok {
			return count
		}
	}
	return 0
}

// under returns the usage of a directory: blocks and files.
func under(dir string) (bytes, files int64) {
	b, f := stats.Taken(dir)
	return int64(b), int64(f)
}
