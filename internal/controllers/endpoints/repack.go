// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/dump"
)

// identity tells addresses apart.
type identity struct {
	ip  string
	uid types.UID
}

func identify(a *corev1.EndpointAddress) identity {
	id := identity{ip: a.IP}
	if a.TargetRef != nil {
		id.uid = a.TargetRef.UID
	}
	return id
}

// none stands for the port of a service without ports.
var none = corev1.EndpointPort{Port: -1}

// Repack returns subsets in canonical form: ports with the same addresses share one subset, and the order is fixed. An address that is both
// ready and not ready for a port is not ready.
//
// With a and b for http and a alone for admin, {a: http, admin} {b: http} becomes {a, b: http} {a: admin}.
func Repack(sets []corev1.EndpointSubset) []corev1.EndpointSubset {
	addresses := map[identity]*corev1.EndpointAddress{}
	behind := map[corev1.EndpointPort]map[identity]bool{} // the addresses of each port, and whether they are ready
	put := func(port corev1.EndpointPort, a *corev1.EndpointAddress, ready bool) {
		id := identify(a)
		if addresses[id] == nil {
			addresses[id] = a
		}
		if behind[port] == nil {
			behind[port] = map[identity]bool{}
		}
		if was, ok := behind[port][id]; !ok || was {
			behind[port][id] = ready
		}
	}
	apps := map[string]*string{} // ports are compared by the values behind their pointers
	for i := range sets {
		ports := sets[i].Ports
		if len(ports) == 0 {
			ports = []corev1.EndpointPort{none}
		}
		for _, port := range ports {
			if app := port.AppProtocol; app != nil {
				if apps[*app] == nil {
					apps[*app] = app
				}
				port.AppProtocol = apps[*app]
			}
			for k := range sets[i].Addresses {
				put(port, &sets[i].Addresses[k], true)
			}
			for k := range sets[i].NotReadyAddresses {
				put(port, &sets[i].NotReadyAddresses[k], false)
			}
		}
	}
	merged := map[string]*corev1.EndpointSubset{}
	for port, ids := range behind {
		order := slices.SortedFunc(maps.Keys(ids), func(a, b identity) int { return cmp.Or(cmp.Compare(a.ip, b.ip), cmp.Compare(a.uid, b.uid)) })
		key := ""
		for _, id := range order {
			key += fmt.Sprintf("%s|%s|%t;", id.ip, id.uid, ids[id])
		}
		set := merged[key]
		if set == nil {
			set = &corev1.EndpointSubset{}
			for _, id := range order {
				if ids[id] {
					set.Addresses = append(set.Addresses, *addresses[id])
				} else {
					set.NotReadyAddresses = append(set.NotReadyAddresses, *addresses[id])
				}
			}
			merged[key] = set
		}
		if port != none {
			set.Ports = append(set.Ports, port)
		}
	}
	packed := []hashed[corev1.EndpointSubset]{}
	for _, set := range merged {
		ports := make([]hashed[corev1.EndpointPort], len(set.Ports))
		for i, port := range set.Ports {
			ports[i] = hashed[corev1.EndpointPort]{port, digest(port)}
		}
		set.Ports = inOrder(ports)
		packed = append(packed, hashed[corev1.EndpointSubset]{*set, digest(*set)})
	}
	return append([]corev1.EndpointSubset{}, inOrder(packed)...)
}

// hashed is a value and its sort key: Kubernetes sorts Endpoints by such hashes, which gives a fixed order.
type hashed[T any] struct {
	value T
	sum   []byte
}

func digest(v any) []byte {
	h := fnv.New128a()
	fmt.Fprintf(h, "%v", dump.ForHash(v))
	return h.Sum(nil)
}

func inOrder[T any](all []hashed[T]) []T {
	slices.SortFunc(all, func(a, b hashed[T]) int { return bytes.Compare(a.sum, b.sum) })
	var values []T
	for _, h := range all {
		values = append(values, h.value)
	}
	return values
}
