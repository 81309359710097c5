// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package stats measures the resource usage of the node, its pods and their containers. A Provider combines statistics of
// the runtime and the kernel; it caches the measurements of volumes, since these take long. Below it, a Reader reads the
// usage of cgroups and of the machine: from the kernel's cgroups, /proc, and file systems. A Reader has no state between
// two readings. Statistics that a kernel does not have are zero.
//
//	usage.go      what a measurement consists of
//	provider.go   measuring the node and its pods
//	collector.go  kubelet's metrics of pods and volumes
//	one.go        a cgroup of v1, where each controller has a tree of its own
//	two.go        a cgroup of v2
//	process.go    what a process has open, and what its network interfaces have carried
//	files.go      file systems, and what lies under a directory
//	machine.go    the machine as a whole
package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Reader reads under these directories. The zero value is this machine.
type Reader struct {
	Cgroups string // empty: /sys/fs/cgroup
	Proc    string // empty: /proc
	Blocks  string // links named MAJOR:MINOR to devices; empty: /sys/dev/block
}

// Group is what the processes of a cgroup, and of those below it, use.
type Group struct {
	CPU      CPU
	Memory   Memory
	Disks    []Disk
	Threads  uint64
	Most     uint64    // threads that there may be; 0: no bound
	Pressure *Pressure // nil: the kernel does not measure it
}

// CPU is processor time in nanoseconds, and the bounds of it.
type CPU struct {
	Used, User, System uint64
	Shares             uint64 // 1024 by default
	Quota              uint64 // microseconds in a period; 0: no bound
	Period             uint64 // microseconds
	Periods            uint64 // in which there was something to do
	ThrottledPeriods   uint64
	Throttled          uint64 // nanoseconds
	BurstPeriods       uint64
	Burst              uint64 // nanoseconds
}

// Memory is in bytes, but for what is counted.
type Memory struct {
	Used, Peak, WorkingSet          uint64
	Cache, Resident, Mapped, Kernel uint64
	ActiveFile, InactiveFile        uint64
	Swap                            uint64
	Limit, SoftLimit, SwapLimit     uint64 // 0: no bound; that of swap is of swap alone
	Failures                        uint64 // how often a bound was met
	OutOfMemory                     uint64 // processes that were ended for it
	Faults, MajorFaults             uint64
	OwnFaults, OwnMajorFaults       uint64 // of the cgroup without those below it, with cgroups v1; as above with v2
}

// Disk is what was read from a device and written to it.
type Disk struct {
	Device             string // /dev/vda
	Major, Minor       uint64
	Reads, ReadBytes   uint64
	Writes, WriteBytes uint64
}

// Pressure is how long processes have waited.
type Pressure struct{ CPU, Memory, IO Waiting }

// Waiting is the nanoseconds in which some of the processes had to wait, and all.
type Waiting struct {
	Some, Full Stall
}

// Stall is a share of the time.
type Stall struct {
	Total                uint64  // nanoseconds
	Avg10, Avg60, Avg300 float64 // percent
}

func (r Reader) cgroups() string { return or(r.Cgroups, "/sys/fs/cgroup") }
func (r Reader) proc() string    { return or(r.Proc, "/proc") }

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

func (r Reader) unified() bool {
	_, err := os.Stat(filepath.Join(r.cgroups(), "cgroup.controllers"))
	return err == nil
}

// Group reads a cgroup, by its path from the root (/kubepods/burstable). It is an error if there is none.
func (r Reader) Group(path string) (*Group, error) {
	read := r.one
	if r.unified() {
		read = r.two
	}
	g, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read cgroup %s: %w", path, err)
	}
	g.Memory.WorkingSet = g.Memory.Used - min(g.Memory.Used, g.Memory.InactiveFile)
	for i := range g.Disks {
		g.Disks[i].Device = r.device(g.Disks[i].Major, g.Disks[i].Minor)
	}
	return g, nil
}

// dir is where a cgroup's processes are listed.
func (r Reader) dir(path string) string {
	if r.unified() {
		return filepath.Join(r.cgroups(), path)
	}
	for _, controller := range []string{"memory", "pids", "cpuacct"} {
		if dir := filepath.Join(r.cgroups(), controller, path); exists(dir) {
			return dir
		}
	}
	return filepath.Join(r.cgroups(), "memory", path)
}

// Below are the names of the cgroups in one.
func (r Reader) Below(path string) []string {
	entries, err := os.ReadDir(r.dir(path))
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}

// Processes are the IDs of a cgroup's own processes.
func (r Reader) Processes(path string) []int {
	var out []int
	for _, l := range lines(filepath.Join(r.dir(path), "cgroup.procs")) {
		if pid, err := strconv.Atoi(l); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

func (r Reader) device(major, minor uint64) string {
	to, err := os.Readlink(filepath.Join(or(r.Blocks, "/sys/dev/block"), fmt.Sprintf("%d:%d", major, minor)))
	if err != nil {
		return ""
	}
	return "/dev/" + filepath.Base(to)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// number reads a file of one number; a bound that is none, and what cannot be read, is zero.
func number(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return value(strings.TrimSpace(string(text)))
}

// unbounded is what the kernel has for no bound in cgroups v1: the most that fits, in whole pages.
const unbounded = 1 << 62

func value(text string) uint64 {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n >= unbounded {
		return 0
	}
	return n
}

// table reads a file whose lines are a name and a number.
func table(path string) map[string]uint64 {
	out := map[string]uint64{}
	for _, l := range lines(path) {
		if name, number, ok := strings.Cut(l, " "); ok {
			out[name] = value(strings.TrimSpace(number))
		}
	}
	return out
}

func lines(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}
