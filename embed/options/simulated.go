// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Simulated are the settings of simulated nodes. With the zero value, all nodes are alike.
type Simulated struct {
	// NodesFile is a SimulatedNodes of config.mortise.dev/v1alpha1: groups of nodes, and how long their pods take in each phase.
	NodesFile string
}

func (o *Simulated) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.NodesFile, "simulated-nodes", o.NodesFile,
		"File of a SimulatedNodes of config.mortise.dev/v1alpha1, which describes groups of simulated nodes. Excludes --nodes.")
}
