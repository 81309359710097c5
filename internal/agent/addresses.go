// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
	"github.com/mortise-dev/mortise/internal/agent/uplink"
)

// Addresses are where others reach a node. They may change at any time (package uplink).
type Addresses interface {
	// Texts are the addresses of now, the one that counts first.
	Texts() []string
	// Tell has f called after each change.
	Tell(f func())
}

// findAddresses finds out where others reach the node, if nobody has said.
func (n *node) findAddresses(ctx context.Context) (err error) {
	switch {
	case len(n.NodeIPs) > 0:
		n.Addresses = uplink.Fixed(n.NodeIPs...)
	case n.Addresses == nil:
		if n.finds, err = uplink.Find(ctx, uplink.Options{Logger: n.Logger}); err != nil {
			return err
		}
		n.Addresses = n.finds
	}
	n.Addresses.Tell(n.addressesChanged)
	return nil
}

// ips are where others reach the node now.
func (n *node) ips() []string { return n.Addresses.Texts() }

// addressesChanged has the Node written anew, and the status of each pod.
func (n *node) addressesChanged() {
	n.runtimeTrouble() // the heartbeat looks
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		w.wake()
	}
}

// replaceAddresses has a patch of a Node's status replace all addresses, if they are others. By themselves patches tell addresses by
// their types, and a node may have two of one.
func replaceAddresses(patch []byte, have, want []corev1.NodeAddress) ([]byte, error) {
	if slices.Equal(have, want) {
		return patch, nil
	}
	var whole map[string]any
	if err := json.Unmarshal(patch, &whole); err != nil {
		return nil, fmt.Errorf("read patch of node's status: %w", err)
	}
	status, _ := whole["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
	}
	list := []any{map[string]any{"$patch": "replace"}}
	for _, a := range want {
		list = append(list, a)
	}
	delete(status, "$setElementOrder/addresses")
	status["addresses"], whole["status"] = list, status
	patch, err := json.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("encode node's addresses: %w", err)
	}
	return patch, nil
}

// podIPs are the pod's addresses, in the order of the node's.
func (n *node) podIPs(pod *corev1.Pod, state *podstate.Pod) []string {
	if pod.Spec.HostNetwork {
		return n.ips()
	}
	return podstatus.SortIPs(state.IPs(), n.ips())
}

// inherited are the addresses that a pod has from the node whose network it is in, and what it had of containers when it got them.
type inherited struct {
	of  string
	ips []string
}

// inherit is what a pod in the node's network shows for its own addresses, of those that the node has. As kubelet has it, they do not
// change while nothing happens to the pod, but a second one is added.
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
