// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package topologymanager

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// maxAllowable is the default of max-allowable-numa-nodes, and its least value: a policy weighs each set of NUMA nodes.
const maxAllowable = 8

// Options are the options of the policies.
type Options struct {
	PreferClosestNUMANodes bool
	MaxAllowableNUMANodes  int
}

// ParseOptions reads topologyManagerPolicyOptions. The errors are kubelet's.
func ParseOptions(options map[string]string) (Options, error) {
	o := Options{MaxAllowableNUMANodes: maxAllowable}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		var err error
		switch value := options[name]; name {
		case "prefer-closest-numa-nodes":
			if o.PreferClosestNUMANodes, err = strconv.ParseBool(value); err != nil {
				return o, fmt.Errorf("bad value for option %q: %w", name, err)
			}
		case "max-allowable-numa-nodes":
			if o.MaxAllowableNUMANodes, err = strconv.Atoi(value); err != nil {
				return o, fmt.Errorf("unable to convert policy option to integer %q: %w", name, err)
			}
			if o.MaxAllowableNUMANodes < maxAllowable {
				return o, fmt.Errorf("the minimum value of %q should not be less than %v", name, maxAllowable)
			}
		default:
			return o, fmt.Errorf("unknown Topology Manager Policy option: %q", name)
		}
	}
	return o, nil
}
