// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containerlog

import (
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/safepath"
)

// The limits of a termination message from a log.
const (
	tailLines = 80
	tailBytes = 2048
	// tailRead is the number of bytes read for it: runtimes split a container's lines at 16 KiB.
	tailRead = 40 << 10
)

// Tail returns the end of a container's log for its termination message.
func Tail(path string) (string, error) {
	text, err := safepath.ReadRegularEnd(path, tailRead)
	if err != nil {
		return "", err
	}
	lines := slices.Collect(strings.Lines(string(text)))
	var out strings.Builder
	for i := max(len(lines)-tailLines, 0); i < len(lines); i++ {
		message, ok := message(lines[i])
		if !ok && i == 0 && len(text) == tailRead { // a line that is longer than the part that was read
			message = lines[i]
		}
		out.WriteString(message)
	}
	logged := out.String()
	return logged[max(len(logged)-tailBytes, 0):], nil
}

// message returns the container's output in one line of CRI's format, and whether the line has this format:
//
//	2026-01-02T03:04:05.678901234Z stdout F a whole line
//	2026-01-02T03:04:05.678901234Z stdout P a part of a line, which ends without the newline
func message(line string) (string, bool) {
	fields := strings.SplitN(line, " ", 4)
	if len(fields) < 4 {
		return "", false
	}
	if _, err := time.Parse(time.RFC3339Nano, fields[0]); err != nil {
		return "", false
	}
	if stream := runtimeapi.LogStreamType(fields[1]); stream != runtimeapi.Stdout && stream != runtimeapi.Stderr {
		return "", false
	}
	tag, _, _ := strings.Cut(fields[2], runtimeapi.LogTagDelimiter)
	if runtimeapi.LogTag(tag) == runtimeapi.LogTagPartial {
		return strings.TrimSuffix(fields[3], "\n"), true
	}
	return fields[3], true
}
