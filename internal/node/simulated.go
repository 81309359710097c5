// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
	"github.com/mortise-dev/mortise/internal/agent/simulated"
)

// checkSimulated reads the configuration of simulated nodes.
func (p *Plan) checkSimulated() error {
	file := p.Simulated.NodesFile
	switch {
	case file == "":
		return nil
	case p.Mode != Simulated:
		return fmt.Errorf("--simulated-nodes: the node is %s, not simulated", p.Mode)
	case p.Count > 1:
		return errors.New("--simulated-nodes and --nodes exclude each other")
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read simulated nodes: %w", err)
	}
	c, err := v1alpha1.ParseSimulatedNodes(data)
	if err != nil {
		return fmt.Errorf("read simulated nodes %s: %w", file, err)
	}
	p.Count = 0
	p.phases = phases(c.Pods, v1alpha1.PodPhases{})
	for _, g := range c.Groups {
		count := 1
		if g.Count != nil {
			count = int(*g.Count)
		}
		p.Count += count
		p.groups = append(p.groups, simulated.Group{
			NamePrefix: g.NamePrefix, Count: count, Capacity: g.Capacity, Allocatable: g.Allocatable, Labels: g.Labels, Annotations: g.Annotations,
			Taints: g.Taints, Zones: g.Zones, Region: g.Region, Phases: phases(g.Pods, c.Pods),
		})
	}
	return nil
}

// phases returns a group's phases; what it does not set comes from all.
func phases(own, all v1alpha1.PodPhases) (out simulated.Phases) {
	first := func(a, b *metav1.Duration) *time.Duration {
		if a == nil {
			a = b
		}
		if a == nil {
			return nil
		}
		return &a.Duration
	}
	if d := first(own.Starts, all.Starts); d != nil {
		out.Starts = *d
	}
	if d := first(own.Ready, all.Ready); d != nil {
		out.Ready = *d
	}
	out.Completes = first(own.Completes, all.Completes)
	out.SharesCPU = cmp.Or(own.Load, all.Load) == v1alpha1.LoadShared
	out.Usage = maps.Clone(all.Usage)
	if out.Usage == nil {
		out.Usage = own.Usage
	}
	maps.Copy(out.Usage, own.Usage)
	return out
}

// manyRange is the range for pods' addresses of many simulated nodes, up to 16,384 with 254 each.
const manyRange = "100.64.0.0/10"

// simulatedRange returns the range that simulated nodes divide. The usual one is too small for many.
func (p *Plan) simulatedRange() string {
	if p.Count > 256 && p.PodCIDRs[0] == netip.MustParsePrefix(DefaultPodCIDR) {
		return manyRange
	}
	return p.PodCIDRs[0].String()
}
