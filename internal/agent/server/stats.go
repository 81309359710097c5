// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent"
)

// HostUsage is what the whole machine uses.
type HostUsage struct {
	Booted                time.Time
	CPUNanoseconds        uint64 // used since boot, over all processors
	MemoryBytes           uint64
	MemoryWorkingSetBytes uint64
	MemoryAvailableBytes  uint64
}

// Host measures this machine through /proc.
func Host() (HostUsage, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return HostUsage{}, fmt.Errorf("read processor times: %w", err)
	}
	mem, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return HostUsage{}, fmt.Errorf("read memory: %w", err)
	}
	u := readMeminfo(mem)
	u.Booted, u.CPUNanoseconds = readStat(stat)
	return u, nil
}

// readStat reads /proc/stat. Its unit is 10 ms on every machine that Go runs on.
func readStat(data []byte) (booted time.Time, nanoseconds uint64) {
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		switch {
		case len(f) > 8 && f[0] == "cpu":
			for i, v := range f[1:9] {
				if i != 3 && i != 4 { // idle, waiting for disks
					n, _ := strconv.ParseUint(v, 10, 64)
					nanoseconds += n * uint64(10*time.Millisecond)
				}
			}
		case len(f) == 2 && f[0] == "btime":
			n, _ := strconv.ParseInt(f[1], 10, 64)
			booted = time.Unix(n, 0)
		}
	}
	return booted, nanoseconds
}

// readMeminfo reads /proc/meminfo.
func readMeminfo(data []byte) HostUsage {
	kb := map[string]uint64{}
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); len(f) > 1 {
			kb[strings.TrimSuffix(f[0], ":")], _ = strconv.ParseUint(f[1], 10, 64)
		}
	}
	u := HostUsage{MemoryAvailableBytes: kb["MemAvailable"] << 10}
	if kb["MemTotal"] >= kb["MemFree"] {
		u.MemoryBytes = (kb["MemTotal"] - kb["MemFree"]) << 10
	}
	if kb["MemTotal"] >= kb["MemAvailable"] {
		u.MemoryWorkingSetBytes = (kb["MemTotal"] - kb["MemAvailable"]) << 10
	}
	return u
}

// summary tells what the node and each running container use.
func (s *Server) summary(w http.ResponseWriter, r *http.Request) {
	all, err := s.node.Stats(r.Context())
	if err != nil {
		writeError(w, err, http.StatusInternalServerError)
		return
	}
	out := stats.Summary{Node: stats.NodeStats{NodeName: s.node.Name()}, Pods: []stats.PodStats{}}
	if s.o.Host != nil {
		u, err := s.o.Host()
		if err != nil {
			writeError(w, err, http.StatusInternalServerError)
			return
		}
		now := metav1.NewTime(s.o.Clock())
		out.Node.StartTime = metav1.NewTime(u.Booted)
		out.Node.CPU = &stats.CPUStats{Time: now, UsageCoreNanoSeconds: &u.CPUNanoseconds}
		out.Node.Memory = &stats.MemoryStats{
			Time: now, UsageBytes: &u.MemoryBytes, WorkingSetBytes: &u.MemoryWorkingSetBytes, AvailableBytes: &u.MemoryAvailableBytes,
		}
	}
	index := map[stats.PodReference]int{}
	for _, c := range all {
		ref := stats.PodReference{Name: c.Target.Pod, Namespace: c.Target.Namespace, UID: string(c.Target.UID)}
		i, ok := index[ref]
		if !ok {
			i = len(out.Pods)
			index[ref] = i
			out.Pods = append(out.Pods, stats.PodStats{PodRef: ref, CPU: &stats.CPUStats{}, Memory: &stats.MemoryStats{}})
		}
		addContainer(&out.Pods[i], c)
	}
	s.writeJSON(w, out)
}

// addContainer adds a container to its pod, and to the pod's sums.
func addContainer(p *stats.PodStats, c agent.ContainerStats) {
	at, started := metav1.NewTime(c.Time), metav1.NewTime(c.Started)
	if p.StartTime.IsZero() || started.Before(&p.StartTime) {
		p.StartTime = started
	}
	p.Containers = append(p.Containers, stats.ContainerStats{
		Name: c.Target.Container, StartTime: started,
		CPU:    &stats.CPUStats{Time: at, UsageCoreNanoSeconds: &c.CPUNanoseconds},
		Memory: &stats.MemoryStats{Time: at, UsageBytes: &c.MemoryBytes, WorkingSetBytes: &c.MemoryWorkingSetBytes},
		Rootfs: &stats.FsStats{Time: at, UsedBytes: &c.FilesystemBytes, InodesUsed: &c.FilesystemInodes},
	})
	p.CPU.Time, p.Memory.Time = at, at
	p.CPU.UsageCoreNanoSeconds = sum(p.CPU.UsageCoreNanoSeconds, c.CPUNanoseconds)
	p.Memory.UsageBytes = sum(p.Memory.UsageBytes, c.MemoryBytes)
	p.Memory.WorkingSetBytes = sum(p.Memory.WorkingSetBytes, c.MemoryWorkingSetBytes)
}

func sum(a *uint64, b uint64) *uint64 {
	if a != nil {
		b += *a
	}
	return &b
}
