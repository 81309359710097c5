// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cputopology

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// sysfs makes the files of a machine with two NUMA nodes of two cores, two threads each; CPU 7 is offline.
func sysfs() fstest.MapFS {
	out := fstest.MapFS{}
	file := func(name, text string) { out["devices/system/"+name] = &fstest.MapFile{Data: []byte(text + "\n")} }
	for cpu := range 8 {
		dir, node := fmt.Sprintf("cpu/cpu%d/", cpu), cpu/4
		file(dir+"topology/core_id", fmt.Sprint(cpu/2))
		file(dir+"topology/physical_package_id", fmt.Sprint(node))
		file(dir+"cache/index3/level", "3")
		file(dir+"cache/index3/id", fmt.Sprint(cpu/2))
		file(dir+"cache/index3/shared_cpu_map", "00000000,00000003")
		file(fmt.Sprintf("node/node%d/cpu%d/online", node, cpu), "1")
	}
	file("cpu/cpu7/online", "0")
	for node := range 2 {
		dir := fmt.Sprintf("node/node%d/", node)
		file(dir+"meminfo", fmt.Sprintf("\nNode %d MemTotal:       1024 kB\nNode %d MemFree:  1 kB", node, node))
		file(dir+"distance", "10 20")
		file(dir+"hugepages/hugepages-2048kB/nr_hugepages", "3")
	}
	return out
}

func TestReadMachine(t *testing.T) {
	m, err := Read(sysfs())
	if err != nil {
		t.Fatal(err)
	}
	node := func(id int, cores ...Core) Node {
		return Node{ID: id, Memory: 1 << 20, HugePages: []HugePages{{2 << 20, 3}}, Distances: []uint64{10, 20}, Cores: cores}
	}
	want := Machine{Nodes: []Node{
		node(0, Core{Socket: 0, Threads: []int{0, 1}, Uncore: 0}, Core{Socket: 0, Threads: []int{2, 3}, Uncore: 1}),
		node(1, Core{Socket: 1, Threads: []int{4, 5}, Uncore: 2}, Core{Socket: 1, Threads: []int{6}, Uncore: NoUncore}),
	}}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Error(diff)
	}
	p, err := New(m)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.All().String(); got != "0-6" {
		t.Errorf("CPUs %s", got)
	}
	if got := []int{p.Count(NUMA), p.Count(Socket), p.Count(PhysicalCore), p.Count(Uncore)}; !cmp.Equal(got, []int{2, 2, 4, 3}) {
		t.Errorf("counts %v", got)
	}
	if got := p.Span(PhysicalCore, p.In(NUMA, 1)); !cmp.Equal(got, []int{4, 6}) {
		t.Errorf("cores of NUMA node 1: %v", got)
	}
}

// A kernel without NUMA shows no nodes.
func TestReadMachineWithoutNUMA(t *testing.T) {
	fs := sysfs()
	for name := range fs {
		if len(name) > 20 && name[:20] == "devices/system/node/" {
			delete(fs, name)
		}
	}
	m, err := Read(fs)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Nodes) != 2 || m.Nodes[1].Memory != 0 || len(m.Nodes[1].Cores) != 2 {
		t.Errorf("machine %+v", m)
	}
}

func TestBadMachines(t *testing.T) {
	for name, m := range map[string]Machine{
		"no CPUs":   {},
		"empty":     {Nodes: []Node{{Cores: []Core{{}}}}},
		"CPU twice": {Nodes: []Node{{Cores: []Core{{Threads: []int{0, 1}}, {Threads: []int{1}}}}}},
	} {
		if _, err := New(m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	fs := sysfs()
	fs["devices/system/node/node0/distance"].Data = []byte("far")
	if _, err := Read(fs); err == nil {
		t.Error("a distance that is no number: no error")
	}
}
