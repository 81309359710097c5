// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package topologymanager

import (
	"slices"
	"testing"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cputopology"
)

func machine(nodes int) cputopology.Machine {
	var m cputopology.Machine
	for id := range nodes {
		m.Nodes = append(m.Nodes, cputopology.Node{ID: id})
	}
	return m
}

func hint(preferred bool, nodes ...int) containermanager.TopologyHint {
	return containermanager.TopologyHint{Nodes: containermanager.NUMAMask(nodes...), Preferred: preferred}
}

// test/resourcemanagers compares thousands of decisions with kubelet's.
func TestMerge(t *testing.T) {
	cpus := []containermanager.TopologyHint{hint(true, 0), hint(true, 1), hint(false, 0, 1)}
	memory := []containermanager.TopologyHint{hint(true, 1), hint(false, 0, 1)}
	wide := []containermanager.TopologyHint{hint(true, 0, 1)}
	for name, c := range map[string]struct {
		policy string
		hints  map[string][]containermanager.TopologyHint
		want   containermanager.TopologyHint
		admit  bool
	}{
		"both on node 1": {"single-numa-node", map[string][]containermanager.TopologyHint{"cpu": cpus, "memory": memory}, hint(true, 1), true},
		"no common node": {"restricted", map[string][]containermanager.TopologyHint{"cpu": cpus[:1], "memory": memory[:1]},
			containermanager.TopologyHint{Nodes: containermanager.NUMAMask(0, 1)}, false},
		"best effort": {"best-effort", map[string][]containermanager.TopologyHint{"cpu": cpus, "memory": wide}, hint(false, 0, 1), true},
		"two nodes": {"single-numa-node", map[string][]containermanager.TopologyHint{"cpu": wide},
			containermanager.TopologyHint{Any: true}, false},
		"impossible": {"restricted", map[string][]containermanager.TopologyHint{"cpu": {}}, hint(false, 0, 1), false},
		"nothing":    {"single-numa-node", nil, containermanager.TopologyHint{Any: true, Preferred: true}, true},
	} {
		p, err := New(Config{Policy: c.policy, Scope: "container", Machine: machine(2)})
		if err != nil {
			t.Fatal(err)
		}
		got, admit := p.Merge([]map[string][]containermanager.TopologyHint{c.hints})
		if got != c.want || admit != c.admit {
			t.Errorf("%s: %+v, admitted %v; want %+v, %v", name, got, admit, c.want, c.admit)
		}
	}
}

func TestConfigurationErrors(t *testing.T) {
	for want, c := range map[string]Config{
		`unknown policy: "strict"`:                                                  {Policy: "strict", Scope: "pod", Machine: machine(1)},
		`unknown scope: "node"`:                                                     {Policy: "restricted", Scope: "node", Machine: machine(1)},
		"unsupported on machines with more than 8 NUMA Nodes":                       {Policy: "restricted", Scope: "pod", Machine: machine(9)},
		"cannot discover NUMA topology: error getting NUMA distances from cadvisor": {Policy: "restricted", Scope: "pod", Machine: machine(1), Options: map[string]string{"prefer-closest-numa-nodes": "true"}},
		`the minimum value of "max-allowable-numa-nodes" should not be less than 8`: {Policy: "restricted", Options: map[string]string{"max-allowable-numa-nodes": "4"}},
		`unknown Topology Manager Policy option: "x"`:                               {Policy: "restricted", Options: map[string]string{"x": ""}},
	} {
		if _, err := New(c); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	if p, err := New(Config{Policy: "none"}); p != nil || err != nil {
		t.Errorf("policy none: %v, error %v", p, err)
	}
}

func TestSubsets(t *testing.T) {
	want := []containermanager.NUMANodes{1, 2, 8, 3, 9, 10, 11}
	if got := slices.Collect(Subsets([]int{0, 1, 3})); !slices.Equal(got, want) {
		t.Errorf("subsets %v, want %v", got, want)
	}
}
