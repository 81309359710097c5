// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Interface has the counters of a network interface.
type Interface struct {
	Name                                          string
	ReceivedBytes, ReceivedPackets, ReceiveErrors uint64
	ReceiveDrops                                  uint64
	SentBytes, SentPackets, SendErrors, SendDrops uint64
}

// Network returns the interfaces that a process sees, without loopback and links to other network namespaces.
func (r Reader) Network(pid int) ([]Interface, error) {
	path := filepath.Join(r.proc(), strconv.Itoa(pid), "net", "dev")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read network interfaces: %w", err)
	}
	return interfaces(string(text)), nil
}

// interfaces parses /proc/net/dev: two heading lines, then a name and sixteen numbers per line.
func interfaces(text string) []Interface {
	var out []Interface
	for l := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimSpace(l), ":")
		f := strings.Fields(rest)
		if !ok || len(f) < 16 || name == "lo" || strings.HasPrefix(name, "veth") {
			continue
		}
		out = append(out, Interface{
			Name: name, ReceivedBytes: value(f[0]), ReceivedPackets: value(f[1]), ReceiveErrors: value(f[2]), ReceiveDrops: value(f[3]),
			SentBytes: value(f[8]), SentPackets: value(f[9]), SendErrors: value(f[10]), SendDrops: value(f[11]),
		})
	}
	return out
}

// SameNetwork reports whether two processes share a network namespace.
func (r Reader) SameNetwork(a, b int) bool {
	one, err := os.Readlink(filepath.Join(r.proc(), strconv.Itoa(a), "ns", "net"))
	other, wrong := os.Readlink(filepath.Join(r.proc(), strconv.Itoa(b), "ns", "net"))
	return err == nil && wrong == nil && one == other
}

// Open returns the number of open files and sockets of a process.
func (r Reader) Open(pid int) (files, sockets int) {
	dir := filepath.Join(r.proc(), strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return len(entries), sockets
}
