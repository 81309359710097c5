// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// Booted returns when the machine booted; zero: the kernel does not say.
func Booted() time.Time {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}
	}
	return booted(string(text))
}

// booted reads the time from the contents of /proc/stat.
func booted(stat string) time.Time {
	for line := range strings.Lines(stat) {
		if text, is := strings.CutPrefix(line, "btime "); is {
			if seconds, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
				return time.Unix(seconds, 0)
			}
		}
	}
	return time.Time{}
}
