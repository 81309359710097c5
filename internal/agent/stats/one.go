// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
)

// tick is the unit of CPU times in text files, in nanoseconds: 10 ms on every machine that Go runs on.
const tick = 10_000_000

// one reads a cgroup of v1.
func (r Reader) one(path string) (*Group, error) {
	at := func(controller, name string) string { return filepath.Join(r.cgroups(), controller, path, name) }
	if !exists(at("memory", "")) && !exists(at("cpuacct", "")) {
		return nil, fs.ErrNotExist
	}
	g := &Group{}
	times, periods := table(at("cpuacct", "cpuacct.stat")), table(at("cpu", "cpu.stat"))
	g.CPU = CPU{
		Used: number(at("cpuacct", "cpuacct.usage")), User: times["user"] * tick, System: times["system"] * tick,
		Shares: number(at("cpu", "cpu.shares")), Quota: number(at("cpu", "cpu.cfs_quota_us")), Period: number(at("cpu", "cpu.cfs_period_us")),
		Periods: periods["nr_periods"], ThrottledPeriods: periods["nr_throttled"], Throttled: periods["throttled_time"],
		BurstPeriods: periods["nr_bursts"], Burst: periods["burst_time"],
	}
	stat := table(at("memory", "memory.stat"))
	g.Memory = Memory{
		Used: number(at("memory", "memory.usage_in_bytes")), Peak: number(at("memory", "memory.max_usage_in_bytes")),
		Cache: stat["total_cache"], Resident: stat["total_rss"], Mapped: stat["total_mapped_file"],
		Kernel:     number(at("memory", "memory.kmem.usage_in_bytes")),
		ActiveFile: stat["total_active_file"], InactiveFile: stat["total_inactive_file"], Swap: stat["total_swap"],
		Limit: number(at("memory", "memory.limit_in_bytes")), SoftLimit: number(at("memory", "memory.soft_limit_in_bytes")),
		Failures: number(at("memory", "memory.failcnt")), OutOfMemory: table(at("memory", "memory.oom_control"))["oom_kill"],
		Faults: stat["total_pgfault"], MajorFaults: stat["total_pgmajfault"], OwnFaults: stat["pgfault"], OwnMajorFaults: stat["pgmajfault"],
	}
	if both := number(at("memory", "memory.memsw.limit_in_bytes")); both > g.Memory.Limit {
		g.Memory.SwapLimit = both - g.Memory.Limit
	}
	g.Threads, g.Most = number(at("pids", "pids.current")), number(at("pids", "pids.max"))
	g.Disks = oneDisks(lines(at("blkio", "blkio.throttle.io_service_bytes_recursive")),
		lines(at("blkio", "blkio.throttle.io_serviced_recursive")))
	return g, nil
}

// oneDisks parses lines with a device, an operation, and a number.
func oneDisks(bytes, operations []string) []Disk {
	var out []Disk
	of := func(device string) *Disk {
		major, minor, ok := numbers(device)
		if !ok {
			return nil
		}
		for i := range out {
			if out[i].Major == major && out[i].Minor == minor {
				return &out[i]
			}
		}
		out = append(out, Disk{Major: major, Minor: minor})
		return &out[len(out)-1]
	}
	for i, list := range [][]string{bytes, operations} {
		for _, l := range list {
			f := strings.Fields(l)
			if len(f) != 3 {
				continue
			}
			d := of(f[0])
			if d == nil {
				continue
			}
			switch n := value(f[2]); {
			case f[1] == "Read" && i == 0:
				d.ReadBytes = n
			case f[1] == "Write" && i == 0:
				d.WriteBytes = n
			case f[1] == "Read":
				d.Reads = n
			case f[1] == "Write":
				d.Writes = n
			}
		}
	}
	return out
}

// numbers are the major and minor number of a device: 253:0.
func numbers(device string) (major, minor uint64, ok bool) {
	a, b, _ := strings.Cut(device, ":")
	major, err := strconv.ParseUint(a, 10, 32)
	minor, wrong := strconv.ParseUint(b, 10, 32)
	return major, minor, err == nil && wrong == nil
}
