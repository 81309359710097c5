// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// onePodsStats are those of a node with one pod.
func onePodsStats() *stats.Usage {
	disk := &stats.FileSystem{Device: "/dev/vda1", Bytes: 1000, Free: 400, Used: 500, Files: 100, FilesFree: 40}
	group := func(path string, used uint64) stats.Cgroup {
		return stats.Cgroup{Path: path, Group: &stats.Group{
			CPU:     stats.CPU{Used: used * 1e9, User: used * 1e9 / 2, Shares: 1024, Period: 100000},
			Memory:  stats.Memory{Used: used, WorkingSet: used, Faults: 9, OwnFaults: 8},
			Threads: used,
		}}
	}
	pod := podspec.Target{Namespace: "default", Pod: "p", UID: "u"}
	in := pod
	in.Container = "c"
	container := stats.Container{
		Cgroup: group("/kubepods/podu/c1", 2), Target: in, ID: "c1", Image: "busybox:1", Started: time.Unix(50, 0), Time: time.Unix(100, 0),
		CPUNanoseconds: 2e9, FilesystemBytes: 30, LogBytes: 7, LogFiles: 1, Processes: 3, Files: 12, Sockets: 4,
	}
	container.Group.CPU.Quota, container.Group.CPU.Periods = 20000, 17
	container.Group.Memory.Limit = 10
	container.Group.Disks = []stats.Disk{{Device: "/dev/vda", Major: 253, Reads: 1, ReadBytes: 4096}}
	container.Group.Pressure = &stats.Pressure{CPU: stats.Waiting{Some: stats.Stall{Total: 5e9, Avg10: 1.5}}}
	return &stats.Usage{
		Time: time.Unix(100, 0),
		Node: []stats.Cgroup{group("/", 50), group("/kubepods", 20)},
		Pods: []stats.Pod{{
			Cgroup: group("/kubepods/podu", 3), Target: pod, Started: time.Unix(40, 0), SandboxID: "s1", Sandbox: group("/kubepods/podu/s1", 1),
			Network: []stats.Interface{{Name: "net1"}, {Name: "eth0", ReceivedBytes: 77, SendDrops: 2}},
			Volumes: []stats.Volume{
				{Name: "v", Time: time.Unix(99, 0), FS: *disk, Bytes: 11, Files: 2},
				{Name: "claimed", Claim: "data", Time: time.Unix(99, 0), FS: *disk, Bytes: 500, Files: 60, Own: true},
			},
		}},
		Containers: []stats.Container{container},
		NodeFS:     disk, ImageFS: disk, Images: &stats.FileSystem{Used: 200, Files: 20},
	}
}

func TestCadvisor(t *testing.T) {
	var failed error
	f := newFixture(t)
	f.node.stats = func() (*stats.Usage, error) { return onePodsStats(), failed }
	_, body := f.get(t, "/metrics/cadvisor")
	const (
		container = `container="c",%sid="/kubepods/podu/c1",image="busybox:1",name="c1",namespace="default",pod="p"`
		sandbox   = `container="",id="/kubepods/podu/s1",image="",%sname="s1",namespace="default",pod="p"`
	)
	of := func(labels, more string) string { return "{" + strings.Replace(labels, "%s", more, 1) + "}" }
	for _, want := range []string{
		`container_cpu_usage_seconds_total` + of(container, `cpu="total",`) + ` 2 100000`,
		`container_cpu_cfs_periods_total` + of(container, ``) + ` 17 100000`,
		`container_memory_failures_total{container="c",failure_type="pgfault",id="/kubepods/podu/c1",image="busybox:1",name="c1",namespace="default",pod="p",scope="container"} 8 100000`,
		`container_spec_memory_limit_bytes` + of(container, ``) + ` 10 100000`,
		`container_file_descriptors` + of(container, ``) + ` 12 100000`,
		`container_fs_usage_bytes` + of(container, `device="/dev/vda1",`) + ` 30 100000`,
		`container_fs_reads_bytes_total` + of(container, `device="/dev/vda",`) + ` 4096 100000`,
		`container_pressure_cpu_waiting_seconds_total` + of(container, ``) + ` 5 100000`,
		`container_start_time_seconds` + of(container, ``) + ` 50 100000`,
		`container_network_receive_bytes_total` + of(sandbox, `interface="eth0",`) + ` 77 100000`,
		`container_network_transmit_packets_dropped_total` + of(sandbox, `interface="eth0",`) + ` 2 100000`,
		`container_memory_usage_bytes{container="",id="/kubepods/podu",image="",name="",namespace="default",pod="p"} 3 100000`,
		`container_memory_usage_bytes{container="",id="/",image="",name="",namespace="",pod=""} 50 100000`,
		`container_fs_usage_bytes{container="",device="/dev/vda1",id="/",image="",name="",namespace="",pod=""} 500 100000`,
		`container_scrape_error 0`,
		`machine_memory_bytes{`,
		`cadvisor_version_info{cadvisorRevision=""`,
	} {
		if !strings.Contains(body, "\n"+want) {
			t.Errorf("no %q", want)
		}
	}
	// Of what has no bound, nothing is said of meeting it.
	if strings.Contains(body, `container_cpu_cfs_periods_total{container=""`) ||
		strings.Contains(body, `container_spec_cpu_quota{container=""`) {
		t.Error("a cgroup without a bound has figures of it")
	}
	if t.Failed() {
		t.Log(body)
	}
	failed = errors.New("the runtime is gone")
	if _, body = f.get(t, "/metrics/cadvisor"); !strings.Contains(body, "container_scrape_error 1") || strings.Contains(body, `pod="p"`) {
		t.Errorf("without a runtime: %s", body)
	}
}

func TestSummary(t *testing.T) {
	all := onePodsStats()
	f := newFixture(t)
	f.node.stats = func() (*stats.Usage, error) { return all, nil }
	read := func(page string) (s statsv1alpha1.Summary) {
		t.Helper()
		_, body := f.get(t, page)
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatal(err, body)
		}
		return s
	}
	first := read("/stats/summary")
	if c := first.Pods[0].Containers[0].CPU; c.UsageNanoCores != nil || *c.UsageCoreNanoSeconds != 2e9 {
		t.Errorf("what is used in a second, before there was one: %+v", c)
	}
	later := onePodsStats()
	later.Containers[0].Time, later.Containers[0].CPUNanoseconds = time.Unix(110, 0), 7e9
	later.Time, later.Pods[0].Group.CPU.Used = time.Unix(110, 0), 8e9
	all = later
	s := read("/stats/summary")
	p := s.Pods[0]
	c := p.Containers[0]
	for what, v := range map[string]struct {
		got  *uint64
		want uint64
	}{
		"the container's rate":             {c.CPU.UsageNanoCores, 5e8},
		"the pod's rate":                   {p.CPU.UsageNanoCores, 5e8},
		"what the container can have":      {c.Memory.AvailableBytes, 8},
		"its own files":                    {c.Rootfs.UsedBytes, 30},
		"the room for them":                {c.Rootfs.AvailableBytes, 400},
		"its log":                          {c.Logs.UsedBytes, 7},
		"what the pod keeps on the node":   {p.EphemeralStorage.UsedBytes, 30 + 7 + 11},
		"processes":                        {p.ProcessStats.ProcessCount, 3},
		"what came from the network":       {p.Network.RxBytes, 77},
		"a volume":                         {p.VolumeStats[0].UsedBytes, 11},
		"a volume of a claim":              {p.VolumeStats[1].UsedBytes, 500},
		"images":                           {s.Node.Runtime.ImageFs.UsedBytes, 200},
		"containers":                       {s.Node.Runtime.ContainerFs.UsedBytes, 30},
		"the node's files":                 {s.Node.Fs.InodesUsed, 60},
		"memory of all pods":               {s.Node.SystemContainers[0].Memory.WorkingSetBytes, 20},
		"how long was waited for the CPUs": {&c.CPU.PSI.Some.Total, 5e6},
	} {
		if v.got == nil || *v.got != v.want {
			t.Errorf("%s: %v, want %d", what, v.got, v.want)
		}
	}
	if p.Network.Name != "eth0" || len(p.Network.Interfaces) != 2 || p.VolumeStats[1].PVCRef == nil ||
		p.VolumeStats[1].PVCRef.Name != "data" || p.StartTime.Unix() != 50 {
		t.Errorf("pod %+v", p)
	}
	if p := read("/stats/summary?only_cpu_and_memory=true").Pods[0]; p.Network != nil || p.VolumeStats != nil || p.Swap != nil ||
		p.IO != nil || p.Containers[0].Rootfs != nil || p.CPU.UsageNanoCores == nil {
		t.Errorf("processors and memory alone: %+v", p)
	}
}

// TestRates: who asks soon after another hears of the same second; what began anew has no rate, and what is gone is forgotten.
func TestRates(t *testing.T) {
	var r rates
	at := func(seconds float64) time.Time { return time.Unix(0, int64(seconds*1e9)) }
	for i, c := range []struct {
		seconds float64
		total   uint64
		want    string
	}{
		{10, 1e9, "none"},
		{10.5, 2e9, "none"},
		{12, 3e9, "1000000000"},
		{12.2, 9e9, "1000000000"},
		{16, 5e9, "500000000"},
		{18, 1e9, "none"}, // it was started again
		{20, 2e9, "500000000"},
	} {
		s := r.begin()
		got := "none"
		if rate := s.of("a", at(c.seconds), c.total); rate != nil {
			got = strconv.FormatUint(*rate, 10)
		}
		r.end(s)
		if got != c.want {
			t.Errorf("%d: at %v: %s, want %s", i, c.seconds, got, c.want)
		}
	}
	s := r.begin()
	s.of("b", at(21), 1)
	r.end(s)
	if len(r.last) != 1 {
		t.Errorf("kept %v", r.last)
	}
}
