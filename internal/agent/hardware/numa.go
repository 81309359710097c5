// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// numaDir is where the kernel lists the machine's NUMA nodes.
const numaDir = "/sys/devices/system/node"

// NUMANodes returns the numbers of the machine's NUMA nodes, sorted; on a machine without any, node 0.
func NUMANodes() []int {
	entries, err := os.ReadDir(numaDir)
	if err != nil {
		return []int{0}
	}
	var out []int
	for _, e := range entries {
		if number, is := strings.CutPrefix(e.Name(), "node"); is {
			if n, err := strconv.Atoi(number); err == nil && n >= 0 {
				out = append(out, n)
			}
		}
	}
	if len(out) == 0 {
		return []int{0}
	}
	slices.Sort(out)
	return out
}
