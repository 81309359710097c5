// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cpumanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/cputopology"
)

// Policies.
const (
	PolicyNone   = "none"
	PolicyStatic = "static"
)

// Options are the options of the static policy.
type Options struct {
	FullPhysicalCPUsOnly      bool // a container gets whole cores, or is rejected
	DistributeCPUsAcrossNUMA  bool // evenly, if one NUMA node is not enough
	AlignBySocket             bool // a container's CPUs come from one socket, rather than from one NUMA node
	DistributeCPUsAcrossCores bool // a container gets threads of different cores if it can
	StrictCPUReservation      bool // no container runs on reserved CPUs
	PreferAlignByUncoreCache  bool // a container's CPUs share a last-level cache if they can
}

// Names of the options in cpuManagerPolicyOptions.
const (
	fullPCPUsOnly             = "full-pcpus-only"
	distributeCPUsAcrossNUMA  = "distribute-cpus-across-numa"
	alignBySocket             = "align-by-socket"
	distributeCPUsAcrossCores = "distribute-cpus-across-cores"
	strictCPUReservation      = "strict-cpu-reservation"
	preferAlignByUncoreCache  = "prefer-align-cpus-by-uncorecache"
)

// ParseOptions reads cpuManagerPolicyOptions. Some options need a feature gate. The errors are kubelet's.
func ParseOptions(options map[string]string, gateOn func(gate string) bool) (Options, error) {
	var o Options
	known := map[string]struct {
		stage string
		value *bool
	}{
		fullPCPUsOnly: {"", &o.FullPhysicalCPUsOnly}, strictCPUReservation: {"", &o.StrictCPUReservation},
		preferAlignByUncoreCache: {"", &o.PreferAlignByUncoreCache}, distributeCPUsAcrossNUMA: {"Beta", &o.DistributeCPUsAcrossNUMA},
		alignBySocket: {"Alpha", &o.AlignBySocket}, distributeCPUsAcrossCores: {"Alpha", &o.DistributeCPUsAcrossCores},
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		option, ok := known[name]
		if !ok {
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		}
		if option.stage != "" && !gateOn("CPUManagerPolicy"+option.stage+"Options") {
			return o, fmt.Errorf("CPU Manager Policy %s-level Options not enabled, but option %q provided", option.stage, name)
		}
		on, err := strconv.ParseBool(options[name])
		if err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
		*option.value = on
	}
	for _, pair := range [][2]string{
		{fullPCPUsOnly, distributeCPUsAcrossCores}, {distributeCPUsAcrossNUMA, distributeCPUsAcrossCores},
		{preferAlignByUncoreCache, distributeCPUsAcrossCores}, {preferAlignByUncoreCache, distributeCPUsAcrossNUMA},
	} {
		if *known[pair[0]].value && *known[pair[1]].value {
			return o, fmt.Errorf("static policy options %s and %s can not be used at the same time", pair[0], pair[1])
		}
	}
	return o, nil
}

// fits returns an error if the machine or the topology policy does not go with the options. The words are kubelet's.
func (o Options) fits(t *cputopology.Topology, topologyPolicy string) error {
	switch {
	case !o.AlignBySocket:
		return nil
	case topologyPolicy == configv1beta1.SingleNumaNodeTopologyManagerPolicy:
		return fmt.Errorf("Topolgy manager %s policy is incompatible with CPUManager %s policy option", topologyPolicy, alignBySocket) //nolint:staticcheck // so is kubelet's
	case t.Count(cputopology.Socket) > t.Count(cputopology.NUMA):
		return errors.New("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA") //nolint:staticcheck // so is kubelet's
	}
	return nil
}
