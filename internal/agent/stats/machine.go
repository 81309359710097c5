// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"path/filepath"
	"strconv"
	"strings"
)

// Machine describes a machine.
type Machine struct {
	CPUs, Cores, Sockets uint64
	Memory, Swap         uint64 // bytes
	Kernel, System       string // versions
	BootID, MachineID    string // empty: unknown
	SystemUUID           string // the machine ID, if there is none
}

// Machine reads the description of the machine.
func (r Reader) Machine() Machine {
	m, info := Machine{}, r.meminfo()
	m.Memory, m.Swap = info["MemTotal"], info["SwapTotal"]
	cores, sockets, socket := map[string]bool{}, map[string]bool{}, ""
	for _, l := range lines(filepath.Join(r.proc(), "cpuinfo")) {
		name, text, _ := strings.Cut(l, ":")
		text = strings.TrimSpace(text)
		switch strings.TrimSpace(name) {
		case "processor":
			m.CPUs++
		case "physical id":
			socket = text
			sockets[text] = true
		case "core id":
			cores[socket+"/"+text] = true
		}
	}
	m.Cores, m.Sockets = uint64(len(cores)), uint64(len(sockets))
	if m.Cores == 0 { // not every architecture reports it
		m.Cores, m.Sockets = m.CPUs, 1
	}
	first := func(path string) string {
		if l := lines(path); len(l) > 0 {
			return l[0]
		}
		return ""
	}
	m.BootID, m.MachineID = first(filepath.Join(r.proc(), "sys/kernel/random/boot_id")), first("/etc/machine-id")
	if m.SystemUUID = first("/sys/class/dmi/id/product_uuid"); m.SystemUUID == "" {
		m.SystemUUID = m.MachineID
	}
	m.Kernel = kernelRelease()
	for _, l := range lines("/etc/os-release") {
		if text, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			m.System = strings.Trim(text, `"`)
		}
	}
	return m
}

// Threads returns the number of the machine's threads and its maximum. ok reports whether the kernel has both.
func (r Reader) Threads() (running, most int64, ok bool) {
	l := lines(filepath.Join(r.proc(), "loadavg")) // 0.1 0.2 0.3 1/234 5678
	if len(l) == 0 {
		return 0, 0, false
	}
	fields := strings.Fields(l[0])
	if len(fields) < 4 {
		return 0, 0, false
	}
	_, all, _ := strings.Cut(fields[3], "/")
	running, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return 0, 0, false
	}
	for _, name := range []string{"pid_max", "threads-max"} {
		if n := int64(number(filepath.Join(r.proc(), "sys/kernel", name))); n > 0 && (most == 0 || n < most) {
			most = n
		}
	}
	return running, most, most > 0
}

// meminfo reads the machine's memory, in bytes.
func (r Reader) meminfo() map[string]uint64 {
	out := map[string]uint64{}
	for _, l := range lines(filepath.Join(r.proc(), "meminfo")) {
		name, rest, _ := strings.Cut(l, ":")
		text, kilo := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		if n := value(text); kilo {
			out[name] = n << 10
		} else {
			out[name] = n
		}
	}
	return out
}
