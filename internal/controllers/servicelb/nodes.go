// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
)

// simulatedLabel marks nodes whose pods have no network.
const simulatedLabel = "mortise.dev/simulated"

// toBeDeleted is the taint of the cluster autoscaler on a node that it is about to delete.
const toBeDeleted = "ToBeDeletedByClusterAutoscaler"

// maxNodes is the number of nodes whose addresses a Service gets at most: the first ones by name.
const maxNodes = 32

// member is a node as load balancers need it.
type member struct {
	name      string
	addresses string // at which the network reaches it, separated by commas
	kubelet   int32  // the port of its API; 0: unknown
	ready     bool
	simulated bool
}

// memberOf reads a node; false: no load balancer uses it.
func memberOf(n *corev1.Node) (m member, ok bool) {
	if v, labelled := n.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		if excluded, err := strconv.ParseBool(v); err != nil || excluded {
			return m, false
		}
	}
	if n.DeletionTimestamp != nil || slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == toBeDeleted }) {
		return m, false
	}
	m = member{name: n.Name, kubelet: n.Status.DaemonEndpoints.KubeletEndpoint.Port, simulated: n.Labels[simulatedLabel] == "true"}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			m.ready = c.Status == corev1.ConditionTrue
		}
	}
	if m.addresses = n.Annotations[v1alpha1.LoadBalancerAddressesAnnotation]; m.addresses != "" {
		return m, true
	}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		var texts []string
		for _, a := range n.Status.Addresses {
			if a.Type == kind {
				texts = append(texts, a.Address)
			}
		}
		if m.addresses = strings.Join(texts, ","); m.addresses != "" {
			break
		}
	}
	return m, true
}

// view is the part of the cluster that decides what a Service gets.
type view struct {
	members []member        // by name
	pool    pool            // of the settings
	api     netip.AddrPort  // of the API server
	silent  map[string]bool // nodes that stopped announcing
}

// offerTo returns what there is for a Service that has some addresses. Local has the nodes of its endpoints, true where some are ready;
// nil: the Service's traffic goes to endpoints on any node.
func (v *view) offerTo(has []netip.Addr, local map[string]bool) offer {
	if !v.pool.empty() {
		return offer{pool: v.pool}
	}
	real := slices.DeleteFunc(slices.Clone(v.members), func(m member) bool { return m.simulated })
	if len(real) == 0 && len(v.members) > 0 {
		return offer{pool: documentation}
	}
	ready := slices.DeleteFunc(slices.Clone(real), func(m member) bool { return !m.ready })
	o := offer{reserved: map[slot]string{}}
	keep := func(netip.Addr) bool { return true }
	if len(ready) == 0 {
		// A node that starts again is not ready for a moment. Its packet rules still work.
		ready, keep = real, func(a netip.Addr) bool { return slices.Contains(has, a) }
	}
	if near := slices.DeleteFunc(slices.Clone(ready), func(m member) bool {
		_, has := local[m.name]
		return !has
	}); len(near) > 0 {
		ready = near
	}
	for _, m := range ready[:min(len(ready), maxNodes)] {
		for _, a := range v1alpha1.LoadBalancerAddresses(m.addresses) {
			if slices.Contains(o.each, a) || !keep(a) {
				continue
			}
			o.each = append(o.each, a)
			o.reserved[slot{a, port{corev1.ProtocolTCP, sshPort}}] = "the SSH server of node " + m.name
			if m.kubelet != 0 {
				o.reserved[slot{a, port{corev1.ProtocolTCP, m.kubelet}}] = "the API of node " + m.name
			}
		}
	}
	if v.api.IsValid() {
		o.reserved[slot{v.api.Addr(), port{corev1.ProtocolTCP, int32(v.api.Port())}}] = "the API server"
	}
	return o
}

// sshPort is never given away on a node's own address: the machine would be out of its owner's reach.
const sshPort = 22

// announcer selects the node that announces an address of a pool: the present one while it is able to, else the one with the highest hash
// of the node and the address, so that addresses are spread and few of them move. Empty: there is none.
func (v *view) announcer(a netip.Addr, present string, local map[string]bool) string {
	best, rank := "", uint64(0)
	choose := func(able func(member) bool) {
		for _, m := range v.members {
			if m.simulated || !able(m) {
				continue
			}
			sum := sha256.Sum256([]byte(m.name + "=" + a.String())) // of neighbouring addresses, fnv's sums are neighbours
			r := binary.BigEndian.Uint64(sum[:])
			if m.name == present {
				r = ^uint64(0)
			}
			if best == "" || r > rank {
				best, rank = m.name, r
			}
		}
	}
	alive := func(m member) bool { return m.ready && !v.silent[m.name] }
	for _, serves := range []func(string) bool{
		func(node string) bool { return local[node] }, // new clients go to endpoints that stay
		func(node string) bool { _, has := local[node]; return has },
	} {
		if choose(func(m member) bool { return alive(m) && serves(m.name) }); best != "" {
			return best
		}
	}
	if choose(alive); best != "" {
		return best
	}
	choose(func(m member) bool { return m.name == present }) // no other node can take over
	return best
}
