// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/mortise-dev/mortise/internal/agent/safepath"
	"github.com/mortise-dev/mortise/internal/durable"
)

// dataFile is the name of kubelet's file.
const dataFile = "vol_data.json"

// dataSize is the maximum size of the file.
const dataSize = 64 << 10

// data are the contents of vol_data.json. The file of a device has only the first two.
type data struct {
	Driver     string `json:"driverName,omitempty"`
	Handle     string `json:"volumeHandle,omitempty"`
	Volume     string `json:"specVolID,omitempty"` // the name of the volume's directory
	Node       string `json:"nodeName,omitempty"`
	Attachment string `json:"attachmentID,omitempty"`
	Lifecycle  string `json:"volumeLifecycleMode,omitempty"`
	Label      string `json:"seLinuxMountContext,omitempty"`
	State      string `json:"mortise.dev/state,omitempty"` // staging: the volume is not published; kubelet ignores it
}

// staging is the state of a volume whose device may be staged, and which is not published.
const staging = "staging"

func (d data) ephemeral() bool { return d.Lifecycle == string(storagev1.VolumeLifecycleEphemeral) }

// decodeData reads the contents of a file.
func decodeData(text []byte) (data, error) {
	var d data
	if err := json.Unmarshal(text, &d); err != nil {
		return data{}, fmt.Errorf("failed to parse volume data file: %w", err) // upstream's words
	}
	if d.Driver == "" || d.Handle == "" {
		return data{}, errors.New("volume data file names no driver or no volume")
	}
	return d, nil
}

// readData reads the file in a directory.
func readData(dir string) (data, error) {
	text, err := safepath.ReadRegular(filepath.Join(dir, dataFile), dataSize)
	if err != nil {
		return data{}, err
	}
	return decodeData(text)
}

// writeData writes the file in a directory, unless it is there already.
func writeData(dir string, d data) error {
	if have, err := readData(dir); err == nil && have == d {
		return nil
	}
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode volume data: %w", err)
	}
	removeUnwritten(dir)
	if err := durable.Write(filepath.Join(dir, dataFile), 0o640, text); err != nil {
		return fmt.Errorf("kubernetes.io/csi: failed to save volume data file %s: %w", filepath.Join(dir, dataFile), err)
	}
	return nil
}

// removeUnwritten removes files that a process has begun to write when it was killed.
func removeUnwritten(dir string) {
	found, err := filepath.Glob(filepath.Join(dir, "."+dataFile+".*"))
	if err != nil {
		return
	}
	for _, path := range found {
		_ = os.Remove(path) // what stays is found again
	}
}

// removeData removes the file in a directory.
func removeData(dir string) error {
	removeUnwritten(dir)
	if err := os.Remove(filepath.Join(dir, dataFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kubernetes.io/csi: failed to delete volume data file [%s]: %w", filepath.Join(dir, dataFile), err)
	}
	return nil
}
