// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/internal/agent/stats"
)

// Host measures this machine through /proc.
func Host() (stats.Host, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return stats.Host{}, fmt.Errorf("read processor times: %w", err)
	}
	mem, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return stats.Host{}, fmt.Errorf("read memory: %w", err)
	}
	u := readMeminfo(mem)
	u.Booted, u.CPUNanoseconds = readStat(stat)
	u.Threads, u.MostThreads, _ = stats.Reader{}.Threads()
	return u, nil
}

// readStat parses /proc/stat. Its unit is 10 ms on every machine that Go runs on.
func readStat(data []byte) (booted time.Time, nanoseconds uint64) {
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		switch {
		case len(f) > 8 && f[0] == "cpu":
			for i, v := range f[1:9] {
				if i != 3 && i != 4 { // idle, and waiting for disks
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

// readMeminfo parses /proc/meminfo.
func readMeminfo(data []byte) stats.Host {
	kb := map[string]uint64{}
	for sc := bufio.NewScanner(bytes.NewReader(data)); sc.Scan(); {
		if f := strings.Fields(sc.Text()); len(f) > 1 {
			kb[strings.TrimSuffix(f[0], ":")], _ = strconv.ParseUint(f[1], 10, 64)
		}
	}
	u := stats.Host{MemoryAvailableBytes: kb["MemAvailable"] << 10}
	if kb["SwapTotal"] >= kb["SwapFree"] {
		u.SwapBytes, u.SwapAvailableBytes = (kb["SwapTotal"]-kb["SwapFree"])<<10, kb["SwapFree"]<<10
	}
	if kb["MemTotal"] >= kb["MemFree"] {
		u.MemoryBytes = (kb["MemTotal"] - kb["MemFree"]) << 10
	}
	if kb["MemTotal"] >= kb["MemAvailable"] {
		u.MemoryWorkingSetBytes = (kb["MemTotal"] - kb["MemAvailable"]) << 10
	}
	return u
}
