// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The mount points of cgroups, v1 and v2.
const (
	cgroupMemory = "/sys/fs/cgroup/memory"
	cgroupAll    = "/sys/fs/cgroup"
)

// Number reads a file with one number.
func Number(path string) (int64, bool) {
	n, err := strconv.ParseInt(Line(path), 10, 64)
	return n, err == nil
}

// WorkingSet returns the memory that a cgroup uses and that cannot be reclaimed quickly: usage without inactive files.
func WorkingSet(cgroup string) (int64, bool) {
	for _, files := range []struct{ usage, stat, inactive string }{
		{filepath.Join(cgroupMemory, cgroup, "memory.usage_in_bytes"), filepath.Join(cgroupMemory, cgroup, "memory.stat"), "total_inactive_file"},
		{filepath.Join(cgroupAll, cgroup, "memory.current"), filepath.Join(cgroupAll, cgroup, "memory.stat"), "inactive_file"},
	} {
		usage, ok := Number(files.usage)
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

// AvailableMemory returns the machine's memory that is free or quickly reclaimable. In a container that plays a machine, the limit of its
// cgroup applies.
func AvailableMemory(capacity int64) (int64, bool) {
	info, err := meminfo()
	if err != nil {
		return 0, false
	}
	available, ok := info["MemAvailable"]
	if !ok {
		return 0, false
	}
	if limit := cgroupMemoryLimit(); limit > 0 && limit <= capacity {
		if used, ok := WorkingSet("/"); ok {
			available = min(available, capacity-used)
		}
	}
	return available, true
}
