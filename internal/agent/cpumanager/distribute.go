// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	"fmt"
	"math"
	"slices"

	"k8s.io/utils/cpuset"

	"github.com/mortise-dev/mortise/internal/agent/cputopology"
)

// takeDistributed takes CPUs evenly from as few NUMA nodes as possible (KEP-2902), in groups of CPUs that stay together. Of several sets of
// NUMA nodes it uses the one after which the free CPUs are distributed most evenly; with align-by-socket, one within a socket before any
// other. A count that is no multiple of the group, or that no set can serve evenly, is packed.
func takeDistributed(t *cputopology.Topology, available cpuset.CPUSet, count, group int, o Options) (cpuset.CPUSet, error) {
	if count%group != 0 {
		return takePacked(t, available, count, o, false)
	}
	k := newTaker(t, available, count, o.DistributeCPUsAcrossCores)
	if k.satisfied() {
		return k.taken, nil
	}
	if err := k.check(available.Size()); err != nil {
		return cpuset.New(), err
	}
	d := distribution{taker: k, count: count, group: group, bySocket: o.AlignBySocket, nodes: k.order(k.above(cputopology.NUMA)...)}
	d.free = map[int]int{}
	for _, node := range d.nodes {
		d.free[node] = k.freeIn(cputopology.NUMA, node).Size()
	}
	fewest, most := d.sizes()
	for size := fewest; size <= most; size++ {
		best := d.best(size)
		if best.nodes == nil {
			continue
		}
		return d.apply(best, o)
	}
	return takePacked(t, available, count, o, false)
}

// distribution is one distribution of CPUs over NUMA nodes.
type distribution struct {
	*taker
	count, group int
	bySocket     bool
	nodes        []int       // NUMA nodes with free CPUs, in the taker's order
	free         map[int]int // free CPUs of each
}

// choice is a set of NUMA nodes.
type choice struct {
	nodes     []int
	remainder []int   // the nodes that give one group more than the others
	balance   float64 // standard deviation of the free CPUs that are left; less is better
	together  bool    // the nodes are in one socket
}

// sizes returns how many NUMA nodes are needed at least, on an empty machine, and may be used at most.
func (d *distribution) sizes() (fewest, most int) {
	up := func(a, b int) int { return (a-1)/b + 1 }
	perNode := up(up(d.topology.All().Size(), d.group), d.topology.Count(cputopology.NUMA))
	groups := up(d.count, d.group)
	return up(groups, perNode), min(groups, len(d.nodes))
}

// even returns how many CPUs each of the nodes gives.
func (d *distribution) even(nodes []int, most bool) int {
	each := d.count / len(nodes) / d.group * d.group
	for _, node := range nodes {
		if most {
			each = min(each, d.free[node]/d.group*d.group)
		}
	}
	return each
}

// best returns the best set of so many NUMA nodes; its nodes are nil if none can serve the count.
func (d *distribution) best(size int) choice {
	best := choice{balance: math.MaxFloat64}
	combinations(d.nodes, size, func(nodes []int) bool {
		if best.balance == 0 && (!d.bySocket || best.together) {
			return false
		}
		if next, ok := d.judge(nodes); ok {
			better := next.balance < best.balance
			if next.together != best.together {
				better = next.together
			}
			if better {
				best = next
			}
		}
		return true
	})
	return best
}

// judge returns the balance of a set of NUMA nodes, if it can serve the count.
func (d *distribution) judge(nodes []int) (choice, bool) {
	free, whole := 0, 0
	for _, node := range nodes {
		free += d.free[node]
		whole += d.free[node] / d.group * d.group
	}
	if free < d.count || whole < d.count {
		return choice{}, false
	}
	each := d.even(nodes, d.bySocket)
	left := map[int]int{}
	for node, n := range d.free {
		left[node] = n
	}
	for _, node := range nodes {
		if d.free[node] < each {
			return choice{}, false
		}
		left[node] -= each
	}
	out := choice{nodes: nodes, balance: math.MaxFloat64}
	if d.bySocket {
		out.together = d.oneSocket(nodes)
	}
	remainder := d.count - each*len(nodes)
	if remainder == 0 {
		out.balance = deviation(left)
		return out, true
	}
	var able []int
	for _, node := range nodes {
		if left[node] >= d.group {
			able = append(able, node)
		}
	}
	for size := len(able); size >= 1; size-- {
		combinations(able, size, func(some []int) bool {
			if balance, ok := d.spreadRest(left, some, remainder); ok && balance < out.balance {
				out.balance, out.remainder = balance, some
			}
			return true
		})
	}
	return out, true
}

// spreadRest returns the balance after the nodes have given the rest in turns, if they can.
func (d *distribution) spreadRest(left map[int]int, nodes []int, rest int) (float64, bool) {
	after := map[int]int{}
	for node, n := range left {
		after[node] = n
	}
	sum := 0
	for _, node := range nodes {
		sum += after[node]
	}
	if sum < rest {
		return 0, false
	}
	for rest > 0 {
		gave := false
		for _, node := range nodes {
			if rest > 0 && after[node] >= d.group {
				after[node] -= d.group
				rest -= d.group
				gave = true
			}
		}
		if !gave { // the rest is in parts of groups
			return 0, false
		}
	}
	return deviation(after), true
}

func (d *distribution) oneSocket(nodes []int) bool {
	var sockets []int
	for _, node := range nodes {
		sockets = append(sockets, d.topology.Span(cputopology.Socket, d.topology.In(cputopology.NUMA, node))...)
	}
	slices.Sort(sockets)
	return len(slices.Compact(sockets)) <= 1
}

// apply takes the CPUs of a choice.
func (d *distribution) apply(c choice, o Options) (cpuset.CPUSet, error) {
	give := func(node, n int) {
		cpus, err := takePacked(d.topology, d.freeIn(cputopology.NUMA, node), n, o, false)
		if err == nil {
			d.take(cpus)
		}
	}
	each := d.even(c.nodes, true)
	for _, node := range c.nodes {
		give(node, each)
	}
	rest := d.count - each*len(c.nodes)
	for rest > 0 {
		before := rest
		for _, node := range c.remainder {
			if rest > 0 && d.freeIn(cputopology.NUMA, node).Size() >= d.group {
				give(node, d.group)
				rest -= d.group
			}
		}
		if rest == before {
			break
		}
	}
	switch { // upstream's words
	case d.need > 0:
		return cpuset.New(), fmt.Errorf("accounting error, not enough CPUs allocated, remaining: %v", d.need)
	case d.need < 0:
		return cpuset.New(), fmt.Errorf("accounting error, too many CPUs allocated, remaining: %v", d.need)
	}
	return d.taken, nil
}

// deviation returns the standard deviation of the values, with three decimals.
func deviation(values map[int]int) float64 {
	round := func(f float64) float64 { return math.Round(f*1000) / 1000 }
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	mean := round(sum / float64(len(values)))
	squares := make([]float64, 0, len(values))
	for _, v := range values {
		squares = append(squares, (float64(v)-mean)*(float64(v)-mean))
	}
	slices.Sort(squares) // a sum of floats depends on their order
	sum = 0
	for _, s := range squares {
		sum += s
	}
	return round(math.Sqrt(sum / float64(len(values))))
}

// combinations calls f with each subset of a size, in lexical order, until f returns false.
//
// As in kubelet, combinations of four and more share an array: one that f has kept may later end in another member. Which CPUs a container
// gets on a machine with five or more NUMA nodes depends on it.
func combinations(of []int, size int, f func([]int) bool) {
	if size < 1 {
		return
	}
	var next func(from, more int, chosen []int) bool
	next = func(from, more int, chosen []int) bool {
		if more == 0 {
			return f(chosen)
		}
		for i := from; i <= len(of)-more; i++ {
			if !next(i+1, more-1, append(chosen, of[i])) {
				return false
			}
		}
		return true
	}
	next(0, size, []int{})
}
