// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// open is an API that lets everybody in, called without a network.
func open(node nodeapi.Node, o Options) func(method, path string) *httptest.ResponseRecorder {
	config := kubeletconfig.Default()
	config.Authorization.Mode, config.Authentication.Anonymous.Enabled = configv1beta1.KubeletAuthorizationModeAlwaysAllow, new(true)
	o.Kubelet = config
	s := New(node, o)
	return func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w
	}
}

// shown are the values of a page of metrics whose lines contain a text, by name and labels; those that say which cgroup and when are
// left out.
func shown(page, of string) map[string]string {
	label := regexp.MustCompile(`([a-z_]+)="([^"]*)"`)
	out := map[string]string{}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "#") || !strings.Contains(line, of) {
			continue
		}
		name, rest, _ := strings.Cut(line, "{")
		labels, value, _ := strings.Cut(rest, "} ")
		for _, l := range label.FindAllStringSubmatch(labels, -1) {
			switch l[1] {
			case "container", "id", "image", "name", "namespace", "pod":
			default:
				name += " " + l[2]
			}
		}
		out[strings.TrimPrefix(name, "container_")] = strings.Fields(value)[0]
	}
	return out
}

// TestEveryFigure: each of cAdvisor's figures is what its name says, of a cgroup whose counts are all different.
func TestEveryFigure(t *testing.T) {
	stall := func(n uint64) stats.Stall { return stats.Stall{Total: n * 1e9} }
	node := newFakeNode(t)
	all := &stats.Usage{
		Time: time.Unix(100, 0), Node: []stats.Cgroup{{Path: "/", Group: &stats.Group{}}},
		Pods: []stats.Pod{{Sandbox: stats.Cgroup{Path: "/s", Group: &stats.Group{}}, Network: []stats.Interface{{
			Name: "eth0", ReceivedBytes: 61, ReceivedPackets: 62, ReceiveErrors: 63, ReceiveDrops: 64,
			SentBytes: 65, SentPackets: 66, SendErrors: 67, SendDrops: 68,
		}}}},
		Containers: []stats.Container{{
			Target: podspec.Target{Container: "c"}, Started: time.Unix(52, 0), FilesystemBytes: 48, Processes: 49, Files: 50, Sockets: 51,
			Cgroup: stats.Cgroup{Path: "/c", Group: &stats.Group{
				CPU: stats.CPU{Used: 1e9, User: 2e9, System: 3e9, Shares: 4, Quota: 5, Period: 6, Periods: 7, ThrottledPeriods: 8,
					Throttled: 9e9, BurstPeriods: 10, Burst: 11e9},
				Memory: stats.Memory{Used: 12, Peak: 13, WorkingSet: 14, Cache: 15, Resident: 16, Mapped: 17, Kernel: 18, ActiveFile: 19,
					InactiveFile: 20, Swap: 21, Limit: 22, SoftLimit: 23, SwapLimit: 24, Failures: 25, OutOfMemory: 26,
					Faults: 27, MajorFaults: 28, OwnFaults: 29, OwnMajorFaults: 30},
				Disks:   []stats.Disk{{Device: "a", Major: 31, Minor: 32, Reads: 33, ReadBytes: 34, Writes: 35, WriteBytes: 36}},
				Threads: 37, Most: 38,
				Pressure: &stats.Pressure{CPU: stats.Waiting{Some: stall(39), Full: stall(40)},
					Memory: stats.Waiting{Some: stall(41), Full: stall(42)}, IO: stats.Waiting{Some: stall(43), Full: stall(44)}},
			}},
		}},
		NodeFS: &stats.FileSystem{Device: "n", Bytes: 53}, ImageFS: &stats.FileSystem{Device: "i", Bytes: 45, Files: 46, FilesFree: 47},
	}
	node.stats = func() (*stats.Usage, error) { return all, nil }
	get := open(node, Options{Host: func() (stats.Host, error) { return stats.Host{Booted: time.Unix(7, 0)}, nil }})
	page := get("GET", "/metrics/cadvisor").Body.String()
	want := map[string]string{
		"cpu_usage_seconds_total total": "1", "cpu_user_seconds_total": "2", "cpu_system_seconds_total": "3", "spec_cpu_shares": "4",
		"spec_cpu_quota": "5", "spec_cpu_period": "6", "cpu_cfs_periods_total": "7", "cpu_cfs_throttled_periods_total": "8",
		"cpu_cfs_throttled_seconds_total": "9", "cpu_cfs_burst_periods_total": "10", "cpu_cfs_burst_seconds_total": "11",
		"memory_usage_bytes": "12", "memory_max_usage_bytes": "13", "memory_working_set_bytes": "14", "memory_cache": "15", "memory_rss": "16",
		"memory_mapped_file": "17", "memory_kernel_usage": "18", "memory_total_active_file_bytes": "19",
		"memory_total_inactive_file_bytes": "20", "memory_swap": "21", "spec_memory_limit_bytes": "22",
		"spec_memory_reservation_limit_bytes": "23", "spec_memory_swap_limit_bytes": "24", "memory_failcnt": "25", "oom_events_total": "26",
		"memory_failures_total pgfault hierarchy": "27", "memory_failures_total pgmajfault hierarchy": "28",
		"memory_failures_total pgfault container": "29", "memory_failures_total pgmajfault container": "30",
		"fs_reads_total a": "33", "fs_reads_bytes_total a": "34", "fs_writes_total a": "35", "fs_writes_bytes_total a": "36",
		"blkio_device_usage_total a 31 32 Read": "34", "blkio_device_usage_total a 31 32 Write": "36", "threads": "37", "threads_max": "38",
		"pressure_cpu_waiting_seconds_total": "39", "pressure_cpu_stalled_seconds_total": "40", "pressure_memory_waiting_seconds_total": "41",
		"pressure_memory_stalled_seconds_total": "42", "pressure_io_waiting_seconds_total": "43", "pressure_io_stalled_seconds_total": "44",
		"fs_limit_bytes i": "45", "fs_inodes_total i": "46", "fs_inodes_free i": "47", "fs_usage_bytes i": "48",
		"processes": "49", "file_descriptors": "50", "sockets": "51", "start_time_seconds": "52", "last_seen": "100",
	}
	if diff := cmp.Diff(want, shown(page, `id="/c"`)); diff != "" {
		t.Error(diff)
	}
	network := map[string]string{
		"receive_bytes_total": "61", "receive_packets_total": "62", "receive_errors_total": "63", "receive_packets_dropped_total": "64",
		"transmit_bytes_total": "65", "transmit_packets_total": "66", "transmit_errors_total": "67", "transmit_packets_dropped_total": "68",
	}
	for name, value := range network {
		if got := shown(page, `id="/s"`)["network_"+name+" eth0"]; got != value {
			t.Errorf("%s is %s, want %s", name, got, value)
		}
	}
	root := shown(page, `id="/"`)
	if root["start_time_seconds"] != "7" || root["fs_limit_bytes n"] != "53" || root["fs_limit_bytes i"] != "45" {
		t.Errorf("the machine: %v", root)
	}
}

// TestResourceFigures: what the metrics server reads, and that it hears of what could not be measured.
func TestResourceFigures(t *testing.T) {
	node, hostless, failed := newFakeNode(t), error(nil), error(nil)
	node.stats = func() (*stats.Usage, error) {
		return &stats.Usage{Containers: []stats.Container{{
			Target: podspec.Target{Namespace: "d", Pod: "p", Container: "c"}, Time: time.Unix(100, 0), Started: time.Unix(50, 0),
			CPUNanoseconds: 2e9, MemoryWorkingSetBytes: 20, SwapBytes: 5,
		}}}, failed
	}
	get := open(node, Options{Clock: func() time.Time { return time.Unix(9, 0) }, Host: func() (stats.Host, error) {
		return stats.Host{CPUNanoseconds: 5e9, MemoryWorkingSetBytes: 7, SwapBytes: 3}, hostless
	}})
	read := func() (out []string) {
		for line := range strings.Lines(get("GET", "/metrics/resource").Body.String()) {
			if !strings.HasPrefix(line, "#") {
				out = append(out, strings.TrimSpace(line))
			}
		}
		return out
	}
	const container, pod = `{container="c",namespace="d",pod="p"}`, `{namespace="d",pod="p"}`
	want := []string{
		"container_cpu_usage_seconds_total" + container + " 2 100000", "container_memory_working_set_bytes" + container + " 20 100000",
		"container_start_time_seconds" + container + " 50 100000", "container_swap_usage_bytes" + container + " 5 100000",
		"node_cpu_usage_seconds_total 5 9000", "node_memory_working_set_bytes 7 9000", "node_swap_usage_bytes 3 9000",
		"pod_cpu_usage_seconds_total" + pod + " 2 100000", "pod_memory_working_set_bytes" + pod + " 20 100000",
		"pod_swap_usage_bytes" + pod + " 5 100000", "resource_scrape_error 0",
	}
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Error(diff)
	}
	hostless, failed = errors.New("no /proc"), errors.New("no runtime")
	if diff := cmp.Diff([]string{"resource_scrape_error 1"}, read()); diff != "" {
		t.Error(diff)
	}
}

// TestSummaryOfLittle: what is not known is left out of the summary, and what cannot be measured is an error.
func TestSummaryOfLittle(t *testing.T) {
	all, hostless, failed := onePodsStats(), error(nil), error(nil)
	node, host := newFakeNode(t), stats.Host{CPUNanoseconds: 5e9}
	node.stats = func() (*stats.Usage, error) { return all, failed }
	get := open(node, Options{Host: func() (stats.Host, error) { return host, hostless }})
	simulated := open(node, Options{})
	read := func(get func(method, path string) *httptest.ResponseRecorder) (s statsv1alpha1.Summary) {
		t.Helper()
		w := get("GET", "/stats/summary")
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil || w.Header().Get("Content-Type") != "application/json" {
			t.Fatalf("%v %s: %v", w.Header(), w.Body, err)
		}
		return s
	}
	all.Node[0].Group.Memory.Resident = 6
	s := read(get)
	if s.Node.Rlimit != nil || s.Pods[0].Memory.AvailableBytes != nil || *s.Node.Memory.RSSBytes != 6 || s.Pods[0].Containers[0].IO == nil {
		t.Errorf("summary %+v", s)
	}
	host.MostThreads, host.Threads = 9, 4
	if r := read(get).Node.Rlimit; r == nil || *r.MaxPID != 9 || *r.NumOfRunningProcesses != 4 {
		t.Errorf("threads %+v", r)
	}
	if s := read(simulated); s.Node.CPU != nil || s.Node.Memory != nil || len(s.Pods) != 1 {
		t.Errorf("without a machine: %+v", s.Node)
	}
	all = onePodsStats()
	all.Containers, all.Pods[0].Network = nil, []stats.Interface{{Name: "net1", ReceivedBytes: 1}, {Name: "net2", ReceivedBytes: 2}}
	if p := read(get).Pods[0]; p.StartTime.Unix() != 40 || p.Network.Name != "net1" || *p.Network.RxBytes != 1 {
		t.Errorf("a pod without containers: %+v", p)
	}

	hostless = errors.New("no /proc")
	if w := get("GET", "/stats/summary"); w.Code != http.StatusInternalServerError || w.Body.String() != "no /proc\n" {
		t.Errorf("without the machine's figures: %d %s", w.Code, w.Body)
	}
	failed = errors.New("no runtime")
	if w := get("GET", "/stats/summary"); w.Code != http.StatusInternalServerError || w.Body.String() != "no runtime\n" {
		t.Errorf("without a runtime: %d %s", w.Code, w.Body)
	}
}

// TestSums: what one does not know is left out of a sum, and a second is long enough for a rate.
func TestSums(t *testing.T) {
	one, two := uint64(1), uint64(2)
	for _, c := range []struct{ a, b, want *uint64 }{{nil, nil, nil}, {&one, nil, &one}, {nil, &two, &two}, {&one, &two, new(uint64(3))}} {
		if diff := cmp.Diff(c.want, sum(c.a, c.b)); diff != "" {
			t.Error(diff)
		}
	}
	var r rates
	for _, c := range []struct {
		at   int64
		want *uint64
	}{{10, nil}, {11, new(uint64(0))}} {
		s := r.begin()
		if diff := cmp.Diff(c.want, s.of("idle", time.Unix(c.at, 0), 5)); diff != "" {
			t.Errorf("at %d: %s", c.at, diff)
		}
		r.end(s)
	}
}

// TestMachine measures this one, and reads files of others.
func TestMachine(t *testing.T) {
	u, err := Host()
	if err != nil || u.Booted.IsZero() || u.CPUNanoseconds == 0 || u.MemoryBytes == 0 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, used := readStat([]byte("cpu  1 2 3 4 5 6 7\n")); used != 0 {
		t.Errorf("a line that is too short is %d", used)
	}
	const kb = 1 << 10
	for text, want := range map[string]stats.Host{
		"SwapTotal: 10 kB\nSwapFree: 4 kB\nAlone\n": {SwapBytes: 6 * kb, SwapAvailableBytes: 4 * kb},
		"SwapTotal: 10 kB\nSwapFree: 10 kB\n":       {SwapAvailableBytes: 10 * kb},
		"SwapFree: 10 kB\n":                         {},
	} {
		if got := readMeminfo([]byte(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}
