// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
)

// notation returns the contents in the notation of k8s.io/utils/dump.ForHash, of which kubelet's checksum is. It does without reflection,
// which takes much longer: the checksum is computed for each allocation, and covers all devices of the node.
func notation(data checkpointData) []byte {
	n := notes("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)")
	list(&n, data.PodDeviceEntries, n.entry)
	n.text(" RegisteredDevices:(map[string][]string)")
	table(&n, data.RegisteredDevices, n.text)
	n.text("}")
	return n
}

// notes is a notation that grows.
type notes []byte

func (n *notes) text(s string) { *n = append(*n, s...) }

func (n *notes) entry(e PodDevicesEntry) {
	for _, field := range [][2]string{
		{"{PodUID:(string)", e.PodUID}, {" ContainerName:(string)", e.ContainerName}, {" ResourceName:(string)", e.ResourceName},
	} {
		n.text(field[0])
		n.text(field[1])
	}
	n.text(" DeviceIDs:(checkpoint.DevicesPerNUMA)")
	table(n, e.DeviceIDs, func(numa int64) { *n = strconv.AppendInt(*n, numa, 10) })
	n.text(" AllocResp:([]uint8)")
	list(n, e.AllocResp, func(b byte) { *n = strconv.AppendUint(*n, uint64(b), 10) })
	n.text("}")
}

// list adds the elements of a slice.
func list[E any](n *notes, all []E, add func(E)) {
	if all == nil {
		n.text("<nil>")
		return
	}
	n.text("[")
	for i, e := range all {
		if i > 0 {
			n.text(" ")
		}
		add(e)
	}
	n.text("]")
}

// table adds a map of lists of names, in the order of its keys.
func table[K cmp.Ordered](n *notes, all map[K][]string, add func(K)) {
	if all == nil {
		n.text("<nil>")
		return
	}
	n.text("map[")
	for i, key := range slices.Sorted(maps.Keys(all)) {
		if i > 0 {
			n.text(" ")
		}
		add(key)
		n.text(":")
		list(n, all[key], n.text)
	}
	n.text("]")
}
