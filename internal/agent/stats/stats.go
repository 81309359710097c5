// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package stats measures the resource usage of a machine. A Reader reads the usage of cgroups and of the machine: from the
// kernel's cgroups, /proc, and file systems. A Reader has no state between two readings. Statistics that a kernel does not
// have are zero. Package podstats measures pods with it.
//
//	usage.go        the result of a measurement
//	one.go          a cgroup of v1, where each controller has its own tree
//	two.go          a cgroup of v2
//	process.go      open files and network interfaces of a process
//	files_linux.go  file systems, and the usage of a directory
//	machine.go      the machine as a whole
package stats

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Reader reads below these directories. The zero value reads this machine.
type Reader struct {
	Cgroups string // empty: /sys/fs/cgroup
	Proc    string // empty: /proc
	Blocks  string // links named MAJOR:MINOR to devices; empty: /sys/dev/block
}

// Group is the usage of a cgroup and the cgroups below it.
type Group struct {
	CPU      CPU
	Memory   Memory
	Disks    []Disk
	Threads  uint64
	Most     uint64    // maximum number of threads; 0: no limit
	Pressure *Pressure // nil: the kernel does not measure it
}

// CPU is the CPU time in nanoseconds, and its limits.
type CPU struct {
	Used, User, System uint64
	Shares             uint64 // 1024 by default
	Quota              uint64 // microseconds per period; 0: no limit
	Period             uint64 // microseconds
	Periods            uint64 // with runnable processes
	ThrottledPeriods   uint64
	Throttled          uint64 // nanoseconds
	BurstPeriods       uint64
	Burst              uint64 // nanoseconds
}

// Memory is in bytes, except for counters.
type Memory struct {
	Used, Peak, WorkingSet          uint64
	Cache, Resident, Mapped, Kernel uint64
	ActiveFile, InactiveFile        uint64
	Swap                            uint64
	Limit, SoftLimit, SwapLimit     uint64 // 0: no limit; SwapLimit is for swap alone
	Failures                        uint64 // how often the usage hit a limit
	OutOfMemory                     uint64 // processes that were killed
	Faults, MajorFaults             uint64
	OwnFaults, OwnMajorFaults       uint64 // without the cgroups below, with cgroups v1; as above with v2
}

// Disk has the I/O counters of a device.
type Disk struct {
	Device             string // /dev/vda
	Major, Minor       uint64
	Reads, ReadBytes   uint64
	Writes, WriteBytes uint64
}

// Pressure is the pressure stall information.
type Pressure struct{ CPU, Memory, IO Waiting }

// Waiting is the time in which some processes stalled, and in which all did.
type Waiting struct {
	Some, Full Stall
}

// Stall is a stall time and its averages.
type Stall struct {
	Total                uint64  // nanoseconds
	Avg10, Avg60, Avg300 float64 // percent
}

func (r Reader) cgroups() string { return cmp.Or(r.Cgroups, "/sys/fs/cgroup") }
func (r Reader) proc() string    { return cmp.Or(r.Proc, "/proc") }

func (r Reader) unified() bool {
	_, err := os.Stat(filepath.Join(r.cgroups(), "cgroup.controllers"))
	return err == nil
}

// Group reads a cgroup by its path from the root (/kubepods/burstable). A missing cgroup is an error.
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

// dir returns the directory with the cgroup's list of processes.
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

// Below returns the names of the cgroups directly below one.
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

// Processes returns the IDs of a cgroup's own processes.
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
	to, err := os.Readlink(filepath.Join(cmp.Or(r.Blocks, "/sys/dev/block"), fmt.Sprintf("%d:%d", major, minor)))
	if err != nil {
		return ""
	}
	return "/dev/" + filepath.Base(to)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// number reads a file with one number. It returns zero for "no limit", and if the file cannot be read.
func number(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return value(strings.TrimSpace(string(text)))
}

// unbounded is the kernel's "no limit" in cgroups v1: the maximum number, in whole pages.
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
