// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/mortise-dev/mortise/internal/durable"
)

// checkpointName is the name of kubelet's file.
const checkpointName = "dra_manager_state"

// mostCheckpoint is the maximum size of the file in bytes.
const mostCheckpoint = 64 << 20

// checkpoint is kubelet's file: a text, which is the JSON of checkpointData, and its checksum (CRC-32, IEEE).
type checkpoint struct {
	Data     string
	Checksum uint32
}

type checkpointData struct {
	metav1.TypeMeta
	ClaimInfoStateList []claim
}

// claim is a claim that pods of the node use, in kubelet's format. Names that begin with "mortise" are ours: kubelet passes over them, and
// its own file has none.
type claim struct {
	ClaimUID    types.UID
	ClaimName   string
	Namespace   string
	PodUIDs     sets.Set[string]
	DriverState map[string]driverState

	// Prepared is the boot ID of the machine when all drivers had prepared the claim; nil: they have not.
	Prepared *string `json:"mortisePreparedInBoot,omitempty"`
}

// driverState is what a driver does for a claim.
type driverState struct {
	Devices            []device
	SkipNodeOperations []resourceapi.SkipNodeOperation `json:"skipNodeOperations,omitempty"`
	// NeverCalled means that no NodePrepareResources has gone out for the claim since the last NodeUnprepareResources. Without
	// the field, as in kubelet's file, it may have gone out.
	NeverCalled bool `json:"mortiseNeverCalled,omitempty"`
}

// device is a prepared device.
type device struct {
	PoolName     string
	DeviceName   string
	ShareID      *types.UID
	RequestNames []string
	CDIDeviceIDs []string
}

func (c claim) key() key { return key{c.Namespace, c.ClaimName} }

// clone copies what changes.
func (c claim) clone() claim {
	c.PodUIDs = c.PodUIDs.Clone()
	c.DriverState = maps.Clone(c.DriverState)
	return c
}

// skips reports whether the driver is not to be called.
func (s driverState) skips(operation resourceapi.SkipNodeOperation) bool {
	return slices.Contains(s.SkipNodeOperations, resourceapi.SkipNodeOperationAll) || slices.Contains(s.SkipNodeOperations, operation)
}

// cdiDevices returns the CDI device IDs for a request; an empty request: for all.
func (c claim) cdiDevices(request string) []string {
	var out []string
	for _, driver := range slices.Sorted(maps.Keys(c.DriverState)) {
		for _, d := range c.DriverState[driver].Devices {
			if request == "" || len(d.RequestNames) == 0 || slices.Contains(d.RequestNames, request) {
				out = append(out, d.CDIDeviceIDs...)
			}
		}
	}
	return out
}

// readCheckpoint reads the claims. Without a file there are none.
func readCheckpoint(path string) (map[key]claim, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[key]claim{}, nil
	}
	if err == nil && info.Size() > mostCheckpoint {
		err = fmt.Errorf("it has %d bytes, and may have %d", info.Size(), mostCheckpoint)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	var out map[key]claim
	if err == nil {
		out, err = decodeCheckpoint(text)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s, please drain the node and remove the file: %w", path, err)
	}
	return out, nil
}

func decodeCheckpoint(text []byte) (map[key]claim, error) {
	var file checkpoint
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, err
	}
	if sum := crc32.ChecksumIEEE([]byte(file.Data)); sum != file.Checksum {
		return nil, fmt.Errorf("checkpoint is corrupted: its checksum is %d, and not %d", sum, file.Checksum)
	}
	var data checkpointData
	if err := json.Unmarshal([]byte(file.Data), &data); err != nil {
		return nil, err
	}
	out := make(map[key]claim, len(data.ClaimInfoStateList))
	for _, c := range data.ClaimInfoStateList {
		if c.PodUIDs == nil {
			c.PodUIDs = sets.Set[string]{}
		}
		if c.DriverState == nil {
			c.DriverState = map[string]driverState{}
		}
		out[c.key()] = c
	}
	return out, nil
}

func encodeCheckpoint(claims map[key]claim) ([]byte, error) {
	data := checkpointData{TypeMeta: metav1.TypeMeta{Kind: "DRACheckpoint", APIVersion: "checkpoint.dra.kubelet.k8s.io/v1"}}
	for _, k := range sorted(slices.Collect(maps.Keys(claims))) {
		data.ClaimInfoStateList = append(data.ClaimInfoStateList, claims[k])
	}
	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	return json.Marshal(checkpoint{Data: string(text), Checksum: crc32.ChecksumIEEE(text)})
}

func writeCheckpoint(path string, claims map[key]claim) error {
	text, err := encodeCheckpoint(claims)
	if err != nil {
		return err
	}
	return durable.Write(path, 0o600, text)
}
