// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// measure finds out what there is of everything that can run short. What cannot be measured is left out.
func (n *node) measure(ctx context.Context) evict.Observations {
	out := evict.Observations{}
	if available, ok := availableMemory(n.machine.memory); ok {
		out[evict.MemoryAvailable] = evict.Observation{Available: available, Capacity: n.machine.memory}
	}
	reserved := n.reserved(corev1.ResourceMemory)
	capacity := n.machine.memory - reserved.Value()
	if used, ok := workingSet(filepath.Join(n.config.CgroupRoot, "kubepods")); ok {
		out[evict.AllocatableMemoryAvailable] = evict.Observation{Available: capacity - used, Capacity: capacity}
	}
	disk := func(path string, bytes, files evict.Signal) {
		if total, free, inodes, inodesFree, err := space(path); err == nil {
			out[bytes] = evict.Observation{Available: free, Capacity: total}
			if inodes > 0 { // some file systems have as many as they need
				out[files] = evict.Observation{Available: inodesFree, Capacity: inodes}
			}
		}
	}
	disk(n.RootDir, evict.NodeFSAvailable, evict.NodeFSInodesFree)
	if path := n.imagePath(ctx); path != "" {
		disk(path, evict.ImageFSAvailable, evict.ImageFSInodesFree)
	}
	if running, most, ok := (stats.Reader{}).Threads(); ok {
		out[evict.PIDAvailable] = evict.Observation{Available: most - running, Capacity: most}
	}
	return out
}

// imagePath is where the runtime keeps images; empty if it does not say.
func (n *node) imagePath(ctx context.Context) string {
	resp, err := n.cri.Images.ImageFsInfo(cri.Quiet(ctx))
	if err != nil || len(resp.GetImageFilesystems()) == 0 {
		return ""
	}
	return resp.ImageFilesystems[0].GetFsId().GetMountpoint()
}

// imagesApart says whether images lie on another file system than the node's directory.
func (n *node) imagesApart(ctx context.Context) bool {
	var a, b unix.Stat_t
	path := n.imagePath(ctx)
	return path != "" && unix.Stat(path, &a) == nil && unix.Stat(n.RootDir, &b) == nil && a.Dev != b.Dev
}

// The directories of cgroups, v1 and v2.
const (
	cgroupMemory = "/sys/fs/cgroup/memory"
	cgroupPIDs   = "/sys/fs/cgroup/pids"
	cgroupAll    = "/sys/fs/cgroup"
)

// number reads a file that holds one number.
func number(path string) (int64, bool) {
	n, err := strconv.ParseInt(line(path), 10, 64)
	return n, err == nil
}

// workingSet is the memory that a cgroup uses and that cannot be had back at once: usage without files that nobody
// has touched lately.
func workingSet(cgroup string) (int64, bool) {
	for _, files := range []struct{ usage, stat, inactive string }{
		{filepath.Join(cgroupMemory, cgroup, "memory.usage_in_bytes"), filepath.Join(cgroupMemory, cgroup, "memory.stat"), "total_inactive_file"},
		{filepath.Join(cgroupAll, cgroup, "memory.current"), filepath.Join(cgroupAll, cgroup, "memory.stat"), "inactive_file"},
	} {
		usage, ok := number(files.usage)
		if !ok {
			continue
		}
		text, err := os.ReadFile(files.stat)
		if err != nil {
			continue
		}
		for l := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(l), " ")
			if inactive, err := strconv.ParseInt(value, 10, 64); name == files.inactive && err == nil {
				return max(usage-inactive, 0), true
			}
		}
	}
	return 0, false
}

// availableMemory is the machine's memory that is free or can be had at once. A container that plays a machine has the
// bound of its cgroup.
func availableMemory(capacity int64) (int64, bool) {
	info, err := meminfo()
	if err != nil {
		return 0, false
	}
	available, ok := info["MemAvailable"]
	if !ok {
		return 0, false
	}
	if limit := cgroupMemoryLimit(); limit > 0 && limit <= capacity {
		if used, ok := workingSet("/"); ok {
			available = min(available, capacity-used)
		}
	}
	return available, true
}

// usage finds out what the pods use.
func (n *node) usage(ctx context.Context, pods []*corev1.Pod) []evict.Pod {
	if len(pods) == 0 {
		return nil
	}
	stats := map[types.UID]map[string]*runtimeapi.ContainerStats{}
	list, err := n.cri.Runtime.ListContainerStats(cri.Quiet(ctx), nil)
	if err != nil {
		n.Logger.Warn("measure containers", "err", err)
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
		p := evict.Pod{Pod: pod, Known: len(stats[pod.UID]) > 0, Processes: n.processesOf(pod)}
		for name, s := range stats[pod.UID] {
			c := evict.Container{
				Name: name, Memory: int64(s.GetMemory().GetWorkingSetBytes().GetValue()),
				LayerBytes: int64(s.GetWritableLayer().GetUsedBytes().GetValue()), LayerInodes: int64(s.GetWritableLayer().GetInodesUsed().GetValue()),
			}
			c.LogBytes, c.LogsInodes = under(filepath.Join(n.config.PodLogDir(pod), name))
			p.Memory += c.Memory
			p.Containers = append(p.Containers, c)
		}
		for _, v := range pod.Spec.Volumes {
			if v.EmptyDir == nil || v.EmptyDir.Medium != corev1.StorageMediumDefault {
				continue
			}
			if path, err := n.volumes.Path(ctx, pod, &v); err == nil {
				bytes, inodes := under(path)
				p.Volumes = append(p.Volumes, evict.Volume{Name: v.Name, Bytes: bytes, Inodes: inodes})
			}
		}
		out = append(out, p)
	}
	return out
}

// processesOf counts what runs in the pod's cgroup.
func (n *node) processesOf(pod *corev1.Pod) int64 {
	for _, root := range []string{cgroupPIDs, cgroupAll} {
		if count, ok := number(filepath.Join(root, n.config.CgroupParent(pod), "pids.current")); ok {
			return count
		}
	}
	return 0
}

// under is what lies under a directory: blocks that are taken, and files.
func under(dir string) (bytes, files int64) {
	b, f := stats.Taken(dir)
	return int64(b), int64(f)
}
