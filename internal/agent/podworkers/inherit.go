// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"slices"
	"strings"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// inherited are the addresses that a pod in the network of its node shows, and whether it had containers when it got them.
type inherited struct {
	of  string
	ips []string
}

// inherit returns the pod's addresses from those of its node. As with kubelet, they do not change while the pod is unchanged, except that a
// second one may be added.
func (i *inherited) inherit(state *podstate.Pod, ips []string) []string {
	var all []string
	for _, s := range state.Sandboxes {
		all = append(all, s.ID)
	}
	for _, c := range state.Containers {
		all = append(all, c.ID)
	}
	slices.Sort(all)
	if of := strings.Join(all, " "); i.of != of || len(i.ips) == 0 {
		i.of, i.ips = of, ips
	}
	i.ips = podstatus.AddSecond(i.ips, ips)
	return i.ips
}
