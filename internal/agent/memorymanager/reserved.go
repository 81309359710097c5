// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memorymanager

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/cputopology"
)

// amounts are bytes of each kind of memory.
type amounts map[corev1.ResourceName]uint64

// isMemory reports whether a resource is plain memory or huge pages.
func isMemory(name corev1.ResourceName) bool {
	return name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix)
}

// readReserved returns the reserved memory of each NUMA node. Altogether it must be what the node reserves: systemReserved, kubeReserved
// and the hard eviction thresholds. The errors are kubelet's.
func readReserved(machine cputopology.Machine, node corev1.ResourceList, list []configv1beta1.MemoryReservation) (map[int]amounts, error) {
	out := map[int]amounts{}
	for _, n := range machine.Nodes {
		out[n.ID] = amounts{}
	}
	total := map[corev1.ResourceName]resource.Quantity{}
	for _, r := range list {
		if out[int(r.NumaNode)] == nil {
			return nil, fmt.Errorf("the reserved memory configuration references a NUMA node %d that does not exist on this machine", r.NumaNode)
		}
		for name, q := range r.Limits {
			sum := total[name].DeepCopy()
			sum.Add(q)
			total[name] = sum
			bytes, ok := q.AsInt64()
			if !ok || bytes < 0 {
				return nil, errors.New("could not covert a variable of type Quantity to int64") // so is kubelet's
			}
			out[int(r.NumaNode)][name] = uint64(bytes)
		}
	}
	names := slices.Collect(maps.Keys(total))
	for name := range node {
		if isMemory(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		have, want := total[name], node[name]
		if have.Cmp(want) != 0 {
			return nil, fmt.Errorf("the total amount %q of type %q is not equal to the value %q determined by Node Allocatable feature",
				have.String(), name, want.String())
		}
	}
	plain := total[corev1.ResourceMemory]
	if plain.Sign() <= 0 {
		return nil, errors.New("[memorymanager] you should specify the system reserved memory")
	}
	return out, nil
}
