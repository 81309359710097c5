// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

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

// hardware is what the node runs on.
type hardware struct {
	cpus           int
	memory         int64 // bytes
	disk, inodes   int64 // of the root directory's file system
	swap           int64
	hugePages      []hugePages // by size
	kernel         string
	osImage        string
	machineID      string
	systemUUID     string
	bootID         string
	lowestOOMScore int64
}

// look finds out about the machine.
func look(root string) (hardware, error) {
	m := hardware{cpus: runtime.NumCPU(), osImage: "Linux"}
	info, err := meminfo()
	if err != nil {
		return m, err
	}
	m.memory, m.swap = info["MemTotal"], info["SwapTotal"]
	if limit := cgroupMemoryLimit(); limit > 0 && limit < m.memory {
		m.memory = limit
	}
	machine := stats.Reader{}.Machine()
	if machine.Kernel == "" {
		return m, errors.New("ask kernel's version: it does not tell")
	}
	m.kernel, m.osImage = machine.Kernel, cmp.Or(machine.System, m.osImage)
	m.machineID, m.systemUUID, m.bootID = machine.MachineID, machine.SystemUUID, machine.BootID
	if err := os.MkdirAll(root, 0o755); err != nil {
		return m, fmt.Errorf("make node's directory: %w", err)
	}
	total, _, inodes, _, err := space(root)
	if err != nil {
		return m, err
	}
	m.disk, m.inodes = total, inodes
	m.lowestOOMScore = lowestOOMScore()
	m.hugePages, err = reservedPages("/sys/kernel/mm/hugepages")
	return m, err
}

// hugePages are pages of one size that the machine keeps apart, in bytes.
type hugePages struct{ size, total int64 }

// reservedPages reads the kernel's figures of huge pages. A kernel without them has none.
func reservedPages(root string) ([]hugePages, error) {
	dirs, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list huge pages: %w", err)
	}
	var out []hugePages
	for _, d := range dirs {
		var kilobytes int64
		if _, err := fmt.Sscanf(d.Name(), "hugepages-%dkB", &kilobytes); err != nil {
			continue
		}
		count, ok := number(filepath.Join(root, d.Name(), "nr_hugepages"))
		if !ok {
			return nil, fmt.Errorf("read huge pages: %s holds no number", d.Name())
		}
		out = append(out, hugePages{size: kilobytes << 10, total: count * kilobytes << 10})
	}
	slices.SortFunc(out, func(a, b hugePages) int { return cmp.Compare(a.size, b.size) })
	return out, nil
}

// line is the first line of a file, or nothing.
func line(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimSpace(first)
}

// meminfo reads the kernel's figures of memory, in bytes.
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

// cgroupMemoryLimit is the bound of the machine's root cgroup, which a container that
// plays a machine has; zero without one.
func cgroupMemoryLimit() int64 {
	for _, path := range []string{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"} {
		if n, err := strconv.ParseInt(line(path), 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return 0
}

// space is the size of a file system and what is left of it.
func space(path string) (total, free, inodes, inodesFree int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, 0, 0, fmt.Errorf("measure file system of %s: %w", path, err)
	}
	return int64(s.Blocks) * s.Bsize, int64(s.Bavail) * s.Bsize, int64(s.Files), int64(s.Ffree), nil
}

// capSysResource is the capability to go below one's own OOM score.
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
	score, err := strconv.ParseInt(line("/proc/self/oom_score_adj"), 10, 64)
	if err != nil {
		return 0
	}
	return score
}
