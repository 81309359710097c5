// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/cputopology"
)

// taker takes CPUs of one container from a set of free ones, the largest fitting part of the machine first. What is left over stays as
// whole as possible: parts with few free CPUs are used up before those with many.
//
// The machine is a tree with two upper levels, outer and inner. NUMA nodes are the outer level unless sockets contain several of them.
type taker struct {
	topology     *cputopology.Topology
	outer, inner cputopology.Level
	spread       bool // single CPUs are taken by number within a socket, not core by core

	free  cpuset.CPUSet
	need  int // how many CPUs are still to be taken
	taken cpuset.CPUSet
}

func newTaker(t *cputopology.Topology, free cpuset.CPUSet, need int, spread bool) *taker {
	out := &taker{topology: t, outer: cputopology.NUMA, inner: cputopology.Socket, spread: spread, need: need}
	out.free = free.Intersection(t.All())
	if t.Count(cputopology.Socket) < t.Count(cputopology.NUMA) {
		out.outer, out.inner = out.inner, out.outer
	}
	return out
}

// satisfied reports whether all CPUs are taken.
func (t *taker) satisfied() bool { return t.need < 1 }

// check returns an error if there are not enough free CPUs.
func (t *taker) check(available int) error {
	if t.need > t.free.Size() {
		// upstream's words
		return fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", t.need, available)
	}
	return nil
}

func (t *taker) take(cpus cpuset.CPUSet) {
	t.taken = t.taken.Union(cpus)
	t.free = t.free.Difference(cpus)
	t.need -= cpus.Size()
}

// above returns the levels from the outermost one down to the given one, which is the outer or the inner level.
func (t *taker) above(level cputopology.Level) []cputopology.Level {
	if level == t.outer {
		return []cputopology.Level{t.outer}
	}
	return []cputopology.Level{t.outer, t.inner}
}

// order returns the members of the last level that have free CPUs. They are grouped by the members of the level before, and so on; within
// each group those with fewer free CPUs come first, then those with lower IDs.
func (t *taker) order(path ...cputopology.Level) []int {
	places := make([]cputopology.CPU, 0, t.free.Size())
	for _, cpu := range t.free.UnsortedList() {
		places = append(places, t.topology.CPUs[cpu])
	}
	var out []int
	for depth, level := range path {
		sizes := map[int]int{}
		within := map[int]map[int]bool{} // by the member of the level before
		for _, place := range places {
			sizes[place[level]]++
			parent := 0
			if depth > 0 {
				parent = place[path[depth-1]]
			}
			if within[parent] == nil {
				within[parent] = map[int]bool{}
			}
			within[parent][place[level]] = true
		}
		parents := out
		if depth == 0 {
			parents = []int{0}
		}
		out = nil
		for _, parent := range parents {
			var group []int
			for id := range within[parent] {
				group = append(group, id)
			}
			slices.SortFunc(group, func(a, b int) int { return cmp.Or(cmp.Compare(sizes[a], sizes[b]), cmp.Compare(a, b)) })
			out = append(out, group...)
		}
	}
	return out
}

// whole returns the members of a level, among those given, whose CPUs are all free. Sockets and cores must have as many free CPUs as the
// average one, as kubelet has it: on a machine where some CPUs are offline, parts without offline CPUs are not whole.
func (t *taker) whole(level cputopology.Level, ids []int) []int {
	var out []int
	for _, id := range ids {
		size := t.topology.In(level, id).Size()
		if level == cputopology.Socket || level == cputopology.PhysicalCore {
			size = t.topology.Average(level)
		}
		if t.freeIn(level, id).Size() == size {
			out = append(out, id)
		}
	}
	return out
}

func (t *taker) freeIn(level cputopology.Level, id int) cpuset.CPUSet {
	return t.topology.In(level, id).Intersection(t.free)
}

// takeWhole takes whole members of a level while they are not larger than the need.
func (t *taker) takeWhole(level cputopology.Level, ids []int) {
	for _, id := range t.whole(level, ids) {
		if cpus := t.topology.In(level, id); t.need >= cpus.Size() {
			t.take(cpus)
		}
	}
}

// takeUncore takes whole last-level caches, then the rest from one cache that has enough whole or part cores.
func (t *taker) takeUncore() {
	path := append(t.above(cputopology.NUMA), cputopology.Uncore)
	for _, id := range t.order(path...) {
		if t.need >= t.topology.Average(cputopology.Uncore) {
			t.takeWhole(cputopology.Uncore, t.order(path...))
		}
		if t.satisfied() {
			return
		}
		if t.takeWithin(id); t.satisfied() {
			return
		}
	}
}

// takeWithin takes all that is needed from the lowest cores of one last-level cache, if their free CPUs are as many as the need: a core
// that is free in part does not count as a whole one, and then nothing is taken. Of an odd need, the last core gives one thread.
func (t *taker) takeWithin(uncore int) {
	perCore := t.topology.Average(cputopology.PhysicalCore)
	cores := t.topology.Span(cputopology.PhysicalCore, t.freeIn(cputopology.Uncore, uncore))
	cores = cores[:min(len(cores), (t.need+perCore-1)/perCore)]
	var cpus []int
	for _, core := range cores {
		cpus = append(cpus, t.freeIn(cputopology.PhysicalCore, core).UnsortedList()...)
	}
	if t.need%2 != 0 && perCore > 1 && len(cpus) > t.need {
		slices.Sort(cpus)
		cpus = cpus[:len(cpus)-1]
	}
	if len(cpus) == t.need {
		t.take(cpuset.New(cpus...))
	}
}

// takeSingle takes single CPUs: core by core, or in spread order.
func (t *taker) takeSingle() {
	last := cputopology.PhysicalCore
	path := append(t.above(t.inner), last)
	if t.spread {
		last = cputopology.Socket
		path = t.above(last)
	}
	for _, id := range t.order(path...) {
		for _, cpu := range t.freeIn(last, id).List() {
			if t.take(cpuset.New(cpu)); t.satisfied() {
				return
			}
		}
	}
}

// takePacked takes CPUs for one container from as few parts of the machine as possible: whole sockets and NUMA nodes, whole last-level
// caches if byUncore, whole cores unless CPUs are spread, and single CPUs.
func takePacked(t *cputopology.Topology, available cpuset.CPUSet, count int, o Options, byUncore bool) (cpuset.CPUSet, error) {
	k := newTaker(t, available, count, o.DistributeCPUsAcrossCores)
	if k.satisfied() {
		return k.taken, nil
	}
	if err := k.check(available.Size()); err != nil {
		return cpuset.New(), err
	}
	steps := []func(){
		func() { k.takeWhole(k.outer, k.order(k.outer)) },
		func() { k.takeWhole(k.inner, k.order(k.outer, k.inner)) },
	}
	if byUncore {
		steps = append(steps, k.takeUncore)
	}
	if !k.spread {
		steps = append(steps, func() {
			k.takeWhole(cputopology.PhysicalCore, k.order(k.outer, k.inner, cputopology.PhysicalCore))
		})
	}
	for _, step := range append(steps, k.takeSingle) {
		if step(); k.satisfied() {
			return k.taken, nil
		}
	}
	return cpuset.New(), errors.New("failed to allocate cpus") // upstream's words
}
