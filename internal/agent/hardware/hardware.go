// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package hardware describes the node's machine: CPUs, memory, disk, huge pages, cgroups, and the kernel settings that kubelet requires. It
// keeps no state.
package hardware

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// Machine describes the node's machine.
type Machine struct {
	CPUs           int
	Memory         int64 // bytes
	Disk, Inodes   int64 // of the root directory's file system
	Swap           int64
	HugePages      []HugePages // by size
	Kernel         string
	OSImage        string
	MachineID      string
	SystemUUID     string
	BootID         string
	LowestOOMScore int64
}

// Look reads the description of the machine. The node stores its files below root, which Look creates if it is missing.
func Look(root string) (Machine, error) {
	m := Machine{CPUs: runtime.NumCPU(), OSImage: "Linux"}
	info, err := meminfo()
	if err != nil {
		return m, err
	}
	m.Memory, m.Swap = info["MemTotal"], info["SwapTotal"]
	if limit := cgroupMemoryLimit(); limit > 0 && limit < m.Memory {
		m.Memory = limit
	}
	machine := stats.Reader{}.Machine()
	if machine.Kernel == "" {
		return m, errors.New("ask kernel's version: it does not tell")
	}
	m.Kernel, m.OSImage = machine.Kernel, cmp.Or(machine.System, m.OSImage)
	m.MachineID, m.SystemUUID, m.BootID = machine.MachineID, machine.SystemUUID, machine.BootID
	if err := os.MkdirAll(root, 0o755); err != nil {
		return m, fmt.Errorf("make node's directory: %w", err)
	}
	total, _, inodes, _, err := Space(root)
	if err != nil {
		return m, err
	}
	m.Disk, m.Inodes = total, inodes
	m.LowestOOMScore = lowestOOMScore()
	m.HugePages, err = reservedPages("/sys/kernel/mm/hugepages")
	return m, err
}

// HugePages are the reserved huge pages of one size, in bytes.
type HugePages struct{ Size, Total int64 }

// reservedPages reads the kernel's numbers of huge pages. A kernel without huge pages has none.
func reservedPages(root string) ([]HugePages, error) {
	dirs, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list huge pages: %w", err)
	}
	var out []HugePages
	for _, d := range dirs {
		var kilobytes int64
		if _, err := fmt.Sscanf(d.Name(), "hugepages-%dkB", &kilobytes); err != nil {
			continue
		}
		count, ok := Number(filepath.Join(root, d.Name(), "nr_hugepages"))
		if !ok {
			return nil, fmt.Errorf("read huge pages: %s holds no number", d.Name())
		}
		out = append(out, HugePages{Size: kilobytes << 10, Total: count * kilobytes << 10})
	}
	slices.SortFunc(out, func(a, b HugePages) int { return cmp.Compare(a.Size, b.Size) })
	return out, nil
}

// Line returns the first line of a file, or the empty string.
func Line(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(first)
}

// meminfo reads the kernel's memory statistics, in bytes.
func meminfo() (map[string]int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("read memory: %w", err)
	}
	defer f.Close()
	out := map[string]int64{}
	for scan := bufio.NewScanner(f); scan.Scan(); {
		fields := strings.Fields(scan.Text())
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			out[strings.TrimSuffix(fields[0], ":")] = n * 1024
		}
	}
	return out, nil
}

// cgroupMemoryLimit returns the limit of the root cgroup, which exists if a container plays the machine; zero without one.
func cgroupMemoryLimit() int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"} {
		if n, err := strconv.ParseInt(Line(path), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// Space returns the size and the free space of a file system.
func Space(path string) (total, free, inodes, inodesFree int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, 0, 0, fmt.Errorf("measure file system of %s: %w", path, err)
	}
	return int64(s.Blocks) * s.Bsize, int64(s.Bavail) * s.Bsize, int64(s.Files), int64(s.Ffree), nil
}

// capSysResource is the capability to lower the OOM score adjustment.
const capSysResource = 24

func lowestOOMScore() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return -1000
	}
	for l := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(l, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
			if err == nil && caps&(1<<capSysResource) != 0 {
				return -1000
			}
		}
	}
	score, err := strconv.ParseInt(Line("/proc/self/oom_score_adj"), 10, 64)
	if err != nil {
		return 0
	}
	return score
}

// AppArmor reports whether the kernel enforces AppArmor profiles.
func AppArmor() bool { return strings.HasPrefix(Line("/sys/module/apparmor/parameters/enabled"), "Y") }
