// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package checkpoint reads and writes kubelet_internal_checkpoint, kubelet's file of the devices that pods have, so that a node is taken
// over in either direction. The checksum covers the names of the package and of its types as kubelet has them: neither may be renamed.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
)

// File is the name of the file in the directory of device plug-ins.
const File = "kubelet_internal_checkpoint"

// MaxBytes is the largest checkpoint that is read.
const MaxBytes = 64 << 20

// ErrChecksum means that the contents do not match their checksum.
var ErrChecksum = errors.New("checkpoint is corrupted")

// NoNUMA stands for devices without a NUMA node.
const NoNUMA = -1

// DevicesPerNUMA has the IDs of devices by the number of their NUMA node. A device of several nodes is listed under each.
type DevicesPerNUMA map[int64][]string

// PodDevicesEntry is what one container has of one resource.
type PodDevicesEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     DevicesPerNUMA
	AllocResp     []byte // a protobuf ContainerAllocateResponse of deviceplugin/v1beta1
}

// checkpointData is what the checksum covers.
type checkpointData struct {
	PodDeviceEntries  []PodDevicesEntry
	RegisteredDevices map[string][]string
}

// whole is the file.
type whole struct {
	Data     checkpointData
	Checksum uint64
}

// Encode returns the file's contents. registered has the healthy devices of each resource.
func Encode(entries []PodDevicesEntry, registered map[string][]string) ([]byte, error) {
	if entries == nil {
		entries = []PodDevicesEntry{}
	}
	if registered == nil {
		registered = map[string][]string{}
	}
	data := checkpointData{entries, registered}
	out, err := json.Marshal(whole{data, checksum(data)})
	if err != nil {
		return nil, fmt.Errorf("encode checkpoint: %w", err)
	}
	return out, nil
}

// Decode reads the file's contents.
func Decode(text []byte) ([]PodDevicesEntry, map[string][]string, error) {
	if len(text) > MaxBytes {
		return nil, nil, fmt.Errorf("checkpoint has %d bytes, more than %d", len(text), MaxBytes)
	}
	var w whole
	if err := json.Unmarshal(text, &w); err != nil {
		return nil, nil, fmt.Errorf("decode checkpoint: %w", err)
	}
	if want := checksum(w.Data); w.Checksum != want {
		return nil, nil, fmt.Errorf("%w: its checksum is %d, that of its contents %d", ErrChecksum, w.Checksum, want)
	}
	return w.Data.PodDeviceEntries, w.Data.RegisteredDevices, nil
}

// checksum is kubelet's: of the Go notation of the contents.
func checksum(data checkpointData) uint64 {
	hash := fnv.New32a()
	_, _ = hash.Write(notation(data))
	return uint64(hash.Sum32())
}
