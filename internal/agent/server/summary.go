// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// summary serves the resource usage of the node, its pods and their running containers.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	little := r.FormValue("only_cpu_and_memory") == "true"
	all, err := s.node.Stats(r.Context(), stats.Options{Cgroups: true, Files: !little})
	if err != nil {
		writeError(w, err, http.StatusInternalServerError)
		return
	}
	out := statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{NodeName: s.node.Name()}, Pods: []statsv1alpha1.PodStats{}}
	sum := summing{rates: s.rates.begin(), little: little}
	switch u, err := s.host(all); {
	case err != nil:
		writeError(w, err, http.StatusInternalServerError)
		return
	case u != nil:
		sum.host(&out.Node, u, s.o.Clock())
	}
	sum.node(&out.Node, all)
	index := map[statsv1alpha1.PodReference]int{}
	of := func(t podspec.Target) *statsv1alpha1.PodStats {
		ref := statsv1alpha1.PodReference{Name: t.Pod, Namespace: t.Namespace, UID: string(t.UID)}
		i, ok := index[ref]
		if !ok {
			i = len(out.Pods)
			index[ref] = i
			out.Pods = append(out.Pods, statsv1alpha1.PodStats{PodRef: ref, Containers: []statsv1alpha1.ContainerStats{},
				CPU: &statsv1alpha1.CPUStats{}, Memory: &statsv1alpha1.MemoryStats{}})
		}
		return &out.Pods[i]
	}
	for i := range all.Containers {
		sum.container(of(all.Containers[i].Target), &all.Containers[i], all)
	}
	for i := range all.Pods {
		sum.pod(of(all.Pods[i].Target), &all.Pods[i], all)
	}
	s.rates.end(sum.rates)
	s.writeJSON(w, out)
}

// summing builds a summary.
type summing struct {
	rates  *sampling
	little bool // CPU and memory only
}

// host adds the usage of the whole machine.
func (m *summing) host(to *statsv1alpha1.NodeStats, u *stats.Host, at time.Time) {
	now := metav1.NewTime(at)
	to.StartTime = metav1.NewTime(u.Booted)
	to.CPU = &statsv1alpha1.CPUStats{Time: now, UsageCoreNanoSeconds: &u.CPUNanoseconds, UsageNanoCores: m.rates.of("/", at, u.CPUNanoseconds)}
	to.Memory = &statsv1alpha1.MemoryStats{
		Time: now, UsageBytes: &u.MemoryBytes, WorkingSetBytes: &u.MemoryWorkingSetBytes, AvailableBytes: &u.MemoryAvailableBytes,
	}
	to.Swap = &statsv1alpha1.SwapStats{Time: now, SwapUsageBytes: &u.SwapBytes, SwapAvailableBytes: &u.SwapAvailableBytes}
	if u.MostThreads > 0 {
		to.Rlimit = &statsv1alpha1.RlimitStats{Time: now, MaxPID: &u.MostThreads, NumOfRunningProcesses: &u.Threads}
	}
}

// node adds the kernel's accounting of the node, and its file systems.
func (m *summing) node(to *statsv1alpha1.NodeStats, all *stats.Usage) {
	at := metav1.NewTime(all.Time)
	for i, c := range all.Node {
		g := c.Group
		switch i {
		case 0:
			if to.CPU != nil {
				to.Memory.RSSBytes, to.Memory.PageFaults, to.Memory.MajorPageFaults = &g.Memory.Resident, &g.Memory.Faults, &g.Memory.MajorFaults
				to.IO = pressed(at, g.Pressure, to.CPU, to.Memory)
			}
		case 1:
			pods := statsv1alpha1.ContainerStats{Name: statsv1alpha1.SystemContainerPods, StartTime: to.StartTime, CPU: m.cpu(c.Path, all.Time, g),
				Memory: memory(at, &g.Memory)}
			pods.IO = pressed(at, g.Pressure, pods.CPU, pods.Memory)
			to.SystemContainers = append(to.SystemContainers, pods)
		}
	}
	to.Network = network(at, all.Network)
	if all.NodeFS != nil {
		to.Fs = room(at, all.NodeFS)
	}
	if all.ImageFS != nil {
		to.Runtime = &statsv1alpha1.RuntimeStats{ImageFs: room(at, all.ImageFS), ContainerFs: room(at, all.ImageFS)}
		to.Runtime.ImageFs.UsedBytes, to.Runtime.ImageFs.InodesUsed = &all.Images.Used, &all.Images.Files
		used, files := uint64(0), uint64(0)
		for _, c := range all.Containers {
			used, files = used+c.FilesystemBytes, files+c.FilesystemInodes
		}
		to.Runtime.ContainerFs.UsedBytes, to.Runtime.ContainerFs.InodesUsed = &used, &files
	}
}

func (m *summing) cpu(key string, at time.Time, g *stats.Group) *statsv1alpha1.CPUStats {
	return &statsv1alpha1.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: &g.CPU.Used,
		UsageNanoCores: m.rates.of(key, at, g.CPU.Used)}
}

// memory converts a cgroup's memory usage. Available memory is known only if the cgroup has a limit.
func memory(at metav1.Time, g *stats.Memory) *statsv1alpha1.MemoryStats {
	out := &statsv1alpha1.MemoryStats{Time: at, UsageBytes: &g.Used, WorkingSetBytes: &g.WorkingSet, RSSBytes: &g.Resident,
		PageFaults: &g.Faults, MajorPageFaults: &g.MajorFaults}
	if g.Limit > 0 {
		out.AvailableBytes = new(g.Limit - min(g.Limit, g.WorkingSet))
	}
	return out
}

// pressed adds the pressure stall information of CPU and memory, and returns that of disks.
func pressed(at metav1.Time, p *stats.Pressure, c *statsv1alpha1.CPUStats, m *statsv1alpha1.MemoryStats) *statsv1alpha1.IOStats {
	if p == nil {
		return nil
	}
	of := func(w stats.Waiting) *statsv1alpha1.PSIStats {
		stall := func(s stats.Stall) statsv1alpha1.PSIData {
			// The kernel has microseconds.
			return statsv1alpha1.PSIData{Total: s.Total / 1000, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
		}
		return &statsv1alpha1.PSIStats{Some: stall(w.Some), Full: stall(w.Full)}
	}
	c.PSI, m.PSI = of(p.CPU), of(p.Memory)
	return &statsv1alpha1.IOStats{Time: at, PSI: of(p.IO)}
}

// network converts the counters of interfaces. As with kubelet, eth0 or else the first one stands for all.
func network(at metav1.Time, list []stats.Interface) *statsv1alpha1.NetworkStats {
	if len(list) == 0 {
		return nil
	}
	out := &statsv1alpha1.NetworkStats{Time: at}
	for _, i := range list {
		one := statsv1alpha1.InterfaceStats{Name: i.Name, RxBytes: &i.ReceivedBytes, RxErrors: &i.ReceiveErrors, TxBytes: &i.SentBytes,
			TxErrors: &i.SendErrors}
		out.Interfaces = append(out.Interfaces, one)
		if i.Name == "eth0" || out.Name == "" {
			out.InterfaceStats = one
		}
	}
	return out
}

// room converts the usage of a file system.
func room(at metav1.Time, f *stats.FileSystem) *statsv1alpha1.FsStats {
	return &statsv1alpha1.FsStats{
		Time: at, AvailableBytes: &f.Free, CapacityBytes: &f.Bytes, UsedBytes: &f.Used, Inodes: &f.Files, InodesFree: &f.FilesFree,
		InodesUsed: new(f.Files - min(f.Files, f.FilesFree)),
	}
}

// within converts the usage of a part of a file system.
func within(at metav1.Time, f *stats.FileSystem, bytes, files uint64) *statsv1alpha1.FsStats {
	out := &statsv1alpha1.FsStats{Time: at}
	if f != nil {
		out = room(at, f)
	}
	out.UsedBytes, out.InodesUsed = &bytes, &files
	return out
}

// container adds a container to its pod, and to the pod's sums.
func (m *summing) container(p *statsv1alpha1.PodStats, c *stats.Container, all *stats.Usage) {
	at, started := metav1.NewTime(c.Time), metav1.NewTime(c.Started)
	if p.StartTime.IsZero() || started.Before(&p.StartTime) {
		p.StartTime = started
	}
	out := statsv1alpha1.ContainerStats{Name: c.Target.Container, StartTime: started,
		CPU: &statsv1alpha1.CPUStats{Time: at, UsageCoreNanoSeconds: &c.CPUNanoseconds,
			UsageNanoCores: m.rates.of(c.ID, c.Time, c.CPUNanoseconds)},
		Memory: &statsv1alpha1.MemoryStats{Time: at, UsageBytes: &c.MemoryBytes, WorkingSetBytes: &c.MemoryWorkingSetBytes},
		Swap:   &statsv1alpha1.SwapStats{Time: at, SwapUsageBytes: &c.SwapBytes, SwapAvailableBytes: &c.SwapFreeBytes},
	}
	if g := c.Group; g != nil {
		out.Memory = memory(at, &g.Memory)
		out.IO = pressed(at, g.Pressure, out.CPU, out.Memory)
		out.Swap.SwapUsageBytes = &g.Memory.Swap
	}
	if !m.little {
		out.Rootfs, out.Logs = within(at, all.ImageFS, c.FilesystemBytes, c.FilesystemInodes), within(at, all.NodeFS, c.LogBytes, c.LogFiles)
	} else {
		out.Swap, out.IO = nil, nil
	}
	p.Containers = append(p.Containers, out)
	p.CPU.Time, p.Memory.Time = at, at
	p.CPU.UsageCoreNanoSeconds = sum(p.CPU.UsageCoreNanoSeconds, &c.CPUNanoseconds)
	p.CPU.UsageNanoCores = sum(p.CPU.UsageNanoCores, out.CPU.UsageNanoCores)
	p.Memory.UsageBytes = sum(p.Memory.UsageBytes, out.Memory.UsageBytes)
	p.Memory.WorkingSetBytes = sum(p.Memory.WorkingSetBytes, out.Memory.WorkingSetBytes)
}

// pod adds the pod's own cgroup, which includes ended containers, and usage outside of containers.
func (m *summing) pod(to *statsv1alpha1.PodStats, p *stats.Pod, all *stats.Usage) {
	at := metav1.NewTime(all.Time)
	if to.StartTime.IsZero() {
		to.StartTime = metav1.NewTime(p.Started)
	}
	if g := p.Group; g != nil {
		to.CPU, to.Memory = m.cpu(p.Path, all.Time, g), memory(at, &g.Memory)
		to.IO = pressed(at, g.Pressure, to.CPU, to.Memory)
		to.Swap = &statsv1alpha1.SwapStats{Time: at, SwapUsageBytes: &g.Memory.Swap,
			SwapAvailableBytes: new(g.Memory.SwapLimit - min(g.Memory.SwapLimit, g.Memory.Swap))}
	}
	if m.little {
		to.IO, to.Swap = nil, nil
		return
	}
	to.Network = network(at, p.Network)
	processes := uint64(0)
	bytes, files := uint64(0), uint64(0)
	for i := range all.Containers {
		if c := &all.Containers[i]; c.Target.UID == p.Target.UID {
			processes += c.Processes
			bytes, files = bytes+c.FilesystemBytes+c.LogBytes, files+c.FilesystemInodes+c.LogFiles
		}
	}
	to.ProcessStats = &statsv1alpha1.ProcessStats{ProcessCount: &processes}
	for _, v := range p.Volumes {
		one := statsv1alpha1.VolumeStats{Name: v.Name, FsStats: *within(metav1.NewTime(v.Time), &v.FS, v.Bytes, v.Files)}
		if v.Claim != "" {
			one.PVCRef = &statsv1alpha1.PVCReference{Name: v.Claim, Namespace: p.Target.Namespace}
		}
		if !v.Own {
			bytes, files = bytes+v.Bytes, files+v.Files
		}
		to.VolumeStats = append(to.VolumeStats, one)
	}
	to.EphemeralStorage = within(at, all.NodeFS, bytes, files)
}

// sum adds the values that are not nil.
func sum(a, b *uint64) *uint64 {
	switch {
	case a == nil && b == nil:
		return nil
	case a == nil:
		return new(*b)
	case b == nil:
		return a
	}
	return new(*a + *b)
}

// rates are the CPU usage rates between two summaries. The first summary has none.
type rates struct {
	mu   sync.Mutex
	last map[string]sample
}

type sample struct {
	at    time.Time
	total uint64
	rate  *uint64 // nanoseconds per second
}

// soonest is the minimum interval between two samples: rates over a shorter time say little.
const soonest = time.Second

type sampling struct{ last, now map[string]sample }

func (r *rates) begin() *sampling {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &sampling{r.last, map[string]sample{}}
}

// end keeps the samples of this summary only.
func (r *rates) end(s *sampling) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = s.now
}

// of returns the rate at which a counter has grown up to a time.
func (s *sampling) of(key string, at time.Time, total uint64) *uint64 {
	before, ok := s.last[key]
	took := at.Sub(before.at)
	switch {
	case ok && took < soonest:
		s.now[key] = before
		return before.rate
	case ok && total >= before.total:
		rate := uint64(float64(total-before.total) / took.Seconds())
		s.now[key] = sample{at, total, &rate}
		return &rate
	}
	s.now[key] = sample{at, total, nil}
	return nil
}
