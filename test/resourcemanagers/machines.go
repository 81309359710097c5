// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcemanagers

import (
	"math/rand/v2"

	"github.com/google/cadvisor/lib/model"

	"github.com/mortise-dev/mortise/internal/agent/cputopology"
)

// A machine is made once and described twice: as Mortise reads it from sysfs, and as cAdvisor reads it for kubelet.

// machine makes a machine: sockets, NUMA nodes in them or across them, threads, last-level caches, memory and huge pages.
func machine(r *rand.Rand) cputopology.Machine {
	sockets := pick(r, 1, 1, 2, 2, 4)
	perSocket := pick(r, 1, 1, 1, 2, 4) // NUMA nodes in a socket
	if sockets*perSocket > 8 {
		perSocket = 2
	}
	few := sockets*perSocket <= 4 // kubelet weighs all combinations of CPUs, memory and huge pages
	together := sockets > 1 && perSocket == 1 && r.IntN(6) == 0
	threads := pick(r, 1, 2, 2, 2)
	cores := pick(r, 2, 3, 4, 6, 8) // of a NUMA node
	caches := pick(r, 0, 0, 1, 2)   // last-level caches that a NUMA node's cores share; 0: the node has one
	all := sockets * perSocket * cores
	interleaved := r.IntN(2) == 0
	var m cputopology.Machine
	core := 0
	for socket := range sockets {
		for range perSocket {
			id := len(m.Nodes)
			node := cputopology.Node{ID: id, Memory: uint64(8+r.IntN(24)) << 30}
			if few && r.IntN(2) == 0 {
				node.HugePages = append(node.HugePages, cputopology.HugePages{Size: 2 << 20, Count: uint64(r.IntN(1024))})
			}
			if few && r.IntN(3) == 0 {
				node.HugePages = append(node.HugePages, cputopology.HugePages{Size: 1 << 30, Count: uint64(r.IntN(4))})
			}
			for i := range cores {
				c := cputopology.Core{Socket: socket, Uncore: cputopology.NoUncore}
				if caches > 0 {
					c.Uncore = id*caches + i*caches/cores
				}
				for thread := range threads {
					if interleaved {
						c.Threads = append(c.Threads, core+thread*all)
					} else {
						c.Threads = append(c.Threads, core*threads+thread)
					}
				}
				core++
				node.Cores = append(node.Cores, c)
			}
			if together && socket%2 == 1 { // one NUMA node for two sockets
				last := &m.Nodes[len(m.Nodes)-1]
				last.Cores = append(last.Cores, node.Cores...)
				continue
			}
			m.Nodes = append(m.Nodes, node)
		}
	}
	sizes := map[uint64]bool{} // the kernel has the same sizes of huge pages on each node
	for _, n := range m.Nodes {
		for _, h := range n.HugePages {
			sizes[h.Size] = true
		}
	}
	for i := range m.Nodes {
		n := &m.Nodes[i]
		n.ID = i
		var pages []cputopology.HugePages
		for _, size := range []uint64{2 << 20, 1 << 30} {
			if !sizes[size] {
				continue
			}
			h := cputopology.HugePages{Size: size}
			for _, have := range n.HugePages {
				if have.Size == size {
					h = have
				}
			}
			pages = append(pages, h)
		}
		n.HugePages = pages
		for j := range m.Nodes {
			switch {
			case i == j:
				n.Distances = append(n.Distances, 10)
			case i/perSocket == j/perSocket:
				n.Distances = append(n.Distances, 12)
			default:
				n.Distances = append(n.Distances, uint64(20+(i+j)%3))
			}
		}
	}
	return m
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// info describes a machine as cAdvisor does.
func info(m cputopology.Machine) *model.MachineInfo {
	out := &model.MachineInfo{}
	sockets := map[int]bool{}
	for _, n := range m.Nodes {
		node := model.Node{Id: n.ID, Memory: n.Memory, Distances: n.Distances}
		for _, h := range n.HugePages {
			node.HugePages = append(node.HugePages, model.HugePagesInfo{PageSize: h.Size >> 10, NumPages: h.Count})
		}
		for i, c := range n.Cores {
			core := model.Core{Id: i, SocketID: c.Socket, Threads: c.Threads}
			if c.Uncore != cputopology.NoUncore {
				core.UncoreCaches = []model.Cache{{Id: c.Uncore, Level: 3, Type: "Unified"}}
			}
			sockets[c.Socket] = true
			out.NumCores += len(c.Threads)
			out.NumPhysicalCores++
			node.Cores = append(node.Cores, core)
		}
		out.MemoryCapacity += n.Memory
		out.Topology = append(out.Topology, node)
	}
	out.NumSockets = len(sockets)
	return out
}
