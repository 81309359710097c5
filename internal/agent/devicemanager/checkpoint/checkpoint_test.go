// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"k8s.io/utils/dump"
)

// written are files that kubelet 1.37.1 has written.
var written = []string{
	`{"Data":{"PodDeviceEntries":[{"PodUID":"8d0a","ContainerName":"c","ResourceName":"example.com/dev","DeviceIDs":{"-1":["a"],"1":["b","c"]},` +
		`"AllocResp":"CggKA0RFVhIBYRoXCgYvZGV2L2ESCS9kZXYvbnVsbBoCcnc="},{"PodUID":"8d0b","ContainerName":"d","ResourceName":"example.com/dev",` +
		`"DeviceIDs":{},"AllocResp":""}],"RegisteredDevices":{"example.com/dev":["a","b","c"],"example.com/none":[]}},"Checksum":3208705080}`,
	`{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":2932075448}`,
	`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"example.com/dev":null}},"Checksum":3318568107}`,
}

// kubelet's files are read, and the same files are written.
func TestKubeletsFiles(t *testing.T) {
	for _, text := range written {
		entries, registered, err := Decode([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if entries == nil {
			continue // written as an empty list
		}
		if again, err := Encode(entries, registered); err != nil || string(again) != text {
			t.Errorf("%s, %v\nnot %s", again, err, text)
		}
	}
	entries, registered, err := Decode([]byte(written[0]))
	if err != nil || len(entries) != 2 || !reflect.DeepEqual(entries[0].DeviceIDs, DevicesPerNUMA{NoNUMA: {"a"}, 1: {"b", "c"}}) ||
		len(registered["example.com/dev"]) != 3 {
		t.Errorf("%v %v %v", entries, registered, err)
	}
}

// A file that is not as it was written is refused.
func TestCorruptFiles(t *testing.T) {
	for text, want := range map[string]error{
		strings.Replace(written[0], `"b"`, `"x"`, 1):      ErrChecksum,
		strings.Replace(written[1], "2932075448", "1", 1): ErrChecksum,
		written[0][:100]:                                         nil,
		`{"Data":[],"Checksum":1}`:                               nil,
		strings.Repeat(" ", MaxBytes+1):                          nil,
		`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"x":[]}}]}}`: nil,
	} {
		if _, _, err := Decode([]byte(text)); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%.50s: %v", text, err)
		}
	}
}

// The checksum is of the notation that kubelet uses.
func TestNotation(t *testing.T) {
	for _, data := range []checkpointData{
		{},
		{[]PodDevicesEntry{}, map[string][]string{}},
		{
			[]PodDevicesEntry{
				{"u", "c\"ß\x01", "r", DevicesPerNUMA{NoNUMA: {"a", "b"}, 1: nil, 2: {}, 10: {"z"}}, []byte{1, 255, 0}},
				{}, {AllocResp: []byte{}, DeviceIDs: DevicesPerNUMA{}},
			},
			map[string][]string{"b": {"x", ""}, "a": nil, "c": {}},
		},
	} {
		if got, want := string(notation(data)), dump.ForHash(data); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

// What is decoded encodes to what decodes to the same, and its notation is kubelet's.
func FuzzDecode(f *testing.F) {
	for _, text := range written {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, registered, err := Decode(text)
		if err != nil {
			return
		}
		again, err := Encode(entries, registered)
		if err != nil {
			t.Fatal(err)
		}
		data := checkpointData{entries, registered}
		if got, want := string(notation(data)), dump.ForHash(data); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if _, _, err := Decode(again); err != nil {
			t.Errorf("%q: %v", again, err)
		}
	})
}
