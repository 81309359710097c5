// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cputopology

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits of what Read accepts. The kernel itself has at most 8,192 CPUs and 1,024 NUMA nodes.
const (
	mostCPUs  = 1 << 14
	mostBytes = 64 << 10 // of one file
)

// Read reads the machine from sysfs, whose root (/sys) is given. CPUs that are offline do not exist. A kernel without NUMA has one node
// for each socket, of unknown memory, as kubelet has it.
func Read(sys fs.FS) (Machine, error) {
	r := reader{sys}
	dirs, err := r.numbered("devices/system/node", "node")
	if err != nil {
		return Machine{}, err
	}
	if len(dirs) == 0 {
		return r.sockets()
	}
	var m Machine
	for _, id := range dirs {
		node, err := r.node(id)
		if err != nil {
			return Machine{}, fmt.Errorf("read NUMA node %d: %w", id, err)
		}
		m.Nodes = append(m.Nodes, node)
	}
	return m, nil
}

type reader struct{ sys fs.FS }

// numbered returns the numbers of the entries prefixN of a directory, sorted. A directory that does not exist has none.
func (r reader) numbered(dir, prefix string) ([]int, error) {
	entries, err := fs.ReadDir(r.sys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var out []int
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), prefix)
		if n, err := strconv.Atoi(digits); ok && err == nil && n >= 0 && n < mostCPUs {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (r reader) text(name string) (string, error) {
	text, err := fs.ReadFile(r.sys, name)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	if len(text) > mostBytes {
		return "", fmt.Errorf("read %s: longer than %d bytes", name, mostBytes)
	}
	return strings.TrimSpace(string(text)), nil
}

func (r reader) number(name string) (int, error) {
	text, err := r.text(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", name, err)
	}
	return n, nil
}

func (r reader) node(id int) (Node, error) {
	dir := path.Join("devices/system/node", "node"+strconv.Itoa(id))
	cpus, err := r.numbered(dir, "cpu")
	if err != nil {
		return Node{}, err
	}
	node := Node{ID: id}
	if node.Cores, err = r.cores(cpus); err != nil {
		return node, err
	}
	if node.Memory, err = r.memory(path.Join(dir, "meminfo")); err != nil {
		return node, err
	}
	if node.HugePages, err = r.hugePages(path.Join(dir, "hugepages")); err != nil {
		return node, err
	}
	node.Distances, err = r.distances(path.Join(dir, "distance"))
	return node, err
}

// sockets returns a node for each socket.
func (r reader) sockets() (Machine, error) {
	cpus, err := r.numbered("devices/system/cpu", "cpu")
	if err != nil {
		return Machine{}, err
	}
	perSocket := map[int][]int{}
	for _, cpu := range cpus {
		if socket, err := r.number(topologyOf(cpu) + "/physical_package_id"); err == nil {
			perSocket[socket] = append(perSocket[socket], cpu)
		}
	}
	var m Machine
	for socket, cpus := range perSocket {
		cores, err := r.cores(cpus)
		if err != nil {
			return Machine{}, err
		}
		m.Nodes = append(m.Nodes, Node{ID: socket, Cores: cores})
	}
	slices.SortFunc(m.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return m, nil
}

func topologyOf(cpu int) string { return "devices/system/cpu/cpu" + strconv.Itoa(cpu) + "/topology" }

// cores groups CPUs by core. CPUs that are offline, or whose place is unknown, are left out.
func (r reader) cores(cpus []int) ([]Core, error) {
	type key struct{ socket, core int }
	at := map[key]int{}
	var out []Core
	for _, cpu := range cpus {
		if online, err := r.text("devices/system/cpu/cpu" + strconv.Itoa(cpu) + "/online"); err == nil && online == "0" {
			continue
		}
		core, err := r.number(topologyOf(cpu) + "/core_id")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		socket, err := r.number(topologyOf(cpu) + "/physical_package_id")
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		i, known := at[key{socket, core}]
		if !known {
			i = len(out)
			at[key{socket, core}] = i
			out = append(out, Core{Socket: socket, Uncore: NoUncore})
		}
		out[i].Threads = append(out[i].Threads, cpu)
	}
	for i := range out {
		out[i].Uncore = r.uncore(out[i].Threads[0], len(out)*len(out[i].Threads))
	}
	return out, nil
}

// uncore returns the ID of a CPU's first cache beyond the second level that does not serve all CPUs of its node. Some virtual machines
// describe no caches; they have none.
func (r reader) uncore(cpu, perNode int) int {
	dir := "devices/system/cpu/cpu" + strconv.Itoa(cpu) + "/cache"
	indexes, err := r.numbered(dir, "index")
	if err != nil {
		return NoUncore
	}
	for _, index := range indexes {
		cache := path.Join(dir, "index"+strconv.Itoa(index))
		level, err := r.number(cache + "/level")
		if err != nil {
			return NoUncore
		}
		id, err := r.number(cache + "/id")
		if err != nil {
			return NoUncore
		}
		served, err := r.served(cache + "/shared_cpu_map")
		if err != nil {
			return NoUncore
		}
		if level > 2 && served != perNode {
			return id
		}
	}
	return NoUncore
}

// served counts the CPUs of a mask such as "0000ffff,00000000".
func (r reader) served(name string) (int, error) {
	text, err := r.text(name)
	if err != nil {
		return 0, err
	}
	count := 0
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(word), 16, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		count += bits.OnesCount64(n)
	}
	return count, nil
}

// memory returns the node's memory in bytes; zero if the kernel does not tell.
func (r reader) memory(name string) (uint64, error) {
	text, err := r.text(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		_, rest, found := strings.Cut(line, "MemTotal:")
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) == 0 {
			break
		}
		kilobytes, err := strconv.ParseUint(fields[0], 10, 53)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		return kilobytes << 10, nil
	}
	return 0, fmt.Errorf("read %s: no MemTotal", name)
}

func (r reader) hugePages(dir string) ([]HugePages, error) {
	entries, err := fs.ReadDir(r.sys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list huge pages: %w", err)
	}
	var out []HugePages
	for _, e := range entries {
		name, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), "kB"), "hugepages-")
		kilobytes, err := strconv.ParseUint(name, 10, 53)
		if !ok || err != nil {
			continue
		}
		count, err := r.number(path.Join(dir, e.Name(), "nr_hugepages"))
		if err != nil {
			return nil, err
		}
		if count < 0 {
			return nil, fmt.Errorf("read %s: %d huge pages", dir, count)
		}
		out = append(out, HugePages{Size: kilobytes << 10, Count: uint64(count)})
	}
	slices.SortFunc(out, func(a, b HugePages) int { return cmp.Compare(a.Size, b.Size) })
	return out, nil
}

// distances returns nil if the kernel does not tell.
func (r reader) distances(name string) ([]uint64, error) {
	text, err := r.text(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []uint64
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		out = append(out, n)
	}
	return out, nil
}
